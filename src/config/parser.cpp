// Every argument becomes a list of settings. They are applied in order, so later ones override earlier ones.
#include "config/parser.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>

#include "base/printable.h"
#include "config/settings.h"
#include "config/table.h"
#include "config/yaml_text.h"
#include "lockstep/error.h"

namespace lockstep::config {
namespace {

std::string shown(const Value& value) {
  std::string items;
  for (const std::string& item : value.items)
    items += (items.empty() ? "" : ", ") + (item.empty() ? std::string("\"\"") : item);
  if (value.is_list) return "[" + printable(items) + "]";
  return value.text.empty() ? "nothing" : "\"" + printable(value.text) + "\"";
}

void apply(const Setting& setting, Config& config) {
  const Key* key = find_key(setting.key);
  require(key != nullptr, ErrorCode::config_invalid, "{}: there is no key {}{}", setting.place, printable(setting.key),
          nearest_text(setting.key));
  const Fit fit = key->set(config, setting.value);
  require(fit == Fit::good, ErrorCode::config_invalid, "{}: {}: expected {}, found {}", setting.place, setting.key,
          expected(*key), shown(setting.value));
  // Of these two keys, the one that is set later is in effect.
  if (key->name == "train.global_batch" && config.train.global_batch > 0) config.train.batch_per_rank = 0;
  if (key->name == "train.batch_per_rank" && config.train.batch_per_rank != 0) config.train.global_batch = 0;
  // A directory describes its own model, unless model.config comes after it.
  if (key->name == "model.from" && config.model.from != Config::Model{}.from) config.model.config.clear();
}

bool is_learned(const Key& key, const Config& config) {
  return key.effect == Effect::learning || key.effect == Effect::fixed ||
         (key.effect == Effect::rounding && config.reproducible);
}

template <typename Select>
std::string yaml_of(const Config& config, Select selected) {
  std::string text;
  std::string group_before;
  const Config defaults;
  for (const Key& key : table()) {
    if (!selected(key) || (key.is_hidden && key.get(config) == key.get(defaults))) continue;
    const auto dot = key.name.find('.');
    const std::string group = dot == std::string::npos ? "" : key.name.substr(0, dot);
    if (!group.empty() && group != group_before) text += group + ":\n";
    group_before = group;
    text += group.empty() ? key.name : "  " + key.name.substr(dot + 1);
    text += ": " + key.get(config) + "\n";
  }
  return text;
}

}  // namespace

Config parse(const std::vector<std::string>& arguments) {
  std::vector<Setting> settings;
  for (const std::string& argument : arguments) add_argument(argument, settings);
  std::map<std::string, const Setting*> last;
  for (const Setting& setting : settings) last[setting.key] = &setting;
  Config config;
  for (Setting& setting : settings) {
    // In a value that is overridden later, environment variables need not be set.
    const bool is_overridden = last.at(setting.key) != &setting;
    if (is_overridden && has_variables(setting) && find_key(setting.key) != nullptr) continue;
    expand_variables(setting);
    apply(setting, config);
    config.origins[setting.key] = setting.place;
  }
  check(config);
  // The order of sums over threads depends on the number of threads.
  if (config.reproducible && config.cpu.threads == 0) config.cpu.threads = 1;
  return config;
}

std::string to_yaml(const Config& config) {
  return yaml_of(config, [](const Key&) { return true; });
}

std::vector<std::pair<std::string, std::string>> values_in(const std::string& yaml) {
  std::vector<Setting> settings;
  add_text(yaml, "the configuration", settings);
  std::vector<std::pair<std::string, std::string>> values;
  for (const auto& [key, value, place] : settings)
    values.emplace_back(key, value.is_list ? fmt::format("[{}]", fmt::join(value.items, ", ")) : value.text);
  return values;
}

std::string learning_yaml(const Config& config) {
  return yaml_of(config, [&](const Key& key) { return is_learned(key, config) && !key.is_path; });
}

std::vector<Difference> learning_differences(const std::string& yaml_before, const Config& now,
                                             const std::string& source) {
  std::vector<Setting> settings;
  if (!yaml_before.empty()) check_is_text(yaml_before, source);
  add_text(yaml_before, source, settings);
  Config before;
  std::vector<std::string> keys_before;
  for (const Setting& setting : settings) {
    const Key* key = find_key(setting.key);
    if (key == nullptr) continue;  // a key of another release
    if (key->set(before, setting.value) == Fit::good) keys_before.push_back(key->name);
  }
  std::vector<Difference> differences;
  for (const Key& key : table()) {
    const bool was_set = std::ranges::find(keys_before, key.name) != keys_before.end();
    if (!(is_learned(key, now) || key.effect == Effect::epochs) || !was_set || key.get(before) == key.get(now))
      continue;
    const bool is_derived = before.train.global_batch == 0 || now.train.global_batch == 0;
    if (key.name == "train.global_batch" && is_derived) continue;
    differences.push_back(
        {key.name, key.get(before), key.get(now), key.effect == Effect::epochs, key.effect == Effect::fixed});
  }
  return differences;
}

}  // namespace lockstep::config

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

/// Names all unknown keys at once, since a file of another program has many.
void check_keys(const std::vector<Setting>& settings) {
  constexpr int kMaxNamed = 20;
  int n = 0;
  std::string text;
  for (const Setting& setting : settings) {
    if (find_key(setting.key) != nullptr || ++n > kMaxNamed) continue;
    text += fmt::format("{}{}: there is no key {}{}", n > 1 ? "\n" : "", setting.place, printable(setting.key),
                        nearest_text(setting.key));
  }
  require(n == 0, ErrorCode::config_invalid, "{}{}", text,
          n > kMaxNamed ? fmt::format("\nand {} more", n - kMaxNamed) : "");
}

void apply(const Setting& setting, Config& config) {
  const Key* key = find_key(setting.key);
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
std::string yaml_of(const Config& config, Select selected, bool has_origins = false) {
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
    text += ": " + key.get(config);
    if (const auto origin = config.origins.find(key.name); has_origins && origin != config.origins.end())
      text += "  # " + printable(origin->second);
    text += "\n";
  }
  return text;
}

}  // namespace

Config parse(const std::vector<std::string>& arguments, const std::string& deepspeed) {
  std::vector<Setting> settings;
  for (const std::string& argument : arguments) add_argument(argument, settings);
  Config config;
  if (!deepspeed.empty()) {
    const auto is_of_file = [](const Setting& setting) { return setting.place != kCommandLine; };
    const auto last_of_file = std::find_if(settings.rbegin(), settings.rend(), is_of_file);
    std::vector<Setting> of_deepspeed;
    add_deepspeed(deepspeed, of_deepspeed, config.notes);
    settings.insert(last_of_file.base(), of_deepspeed.begin(), of_deepspeed.end());
  }
  std::erase_if(settings,
                [](Setting& setting) { return setting.place == kCommandLine && !translate_variable(setting); });
  check_keys(settings);
  std::map<std::string, const Setting*> last;
  for (const Setting& setting : settings) last[setting.key] = &setting;
  for (Setting& setting : settings) {
    // In a value that is overridden later, environment variables need not be set.
    const bool is_overridden = last.at(setting.key) != &setting;
    if (is_overridden && has_variables(setting)) continue;
    expand_variables(setting);
    apply(setting, config);
    config.origins[setting.key] = setting.place;
  }
  check(config);
  // The order of sums over threads depends on the number of threads.
  if (config.reproducible && config.cpu.threads == 0) config.cpu.threads = 1;
  return config;
}

std::string to_yaml(const Config& config, bool has_origins) {
  return yaml_of(
      config, [](const Key&) { return true; }, has_origins);
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

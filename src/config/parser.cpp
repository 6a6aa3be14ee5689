// Every argument becomes a list of settings (key, value, place). They are applied in order, so later ones override
// earlier ones.
#include "config/parser.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <map>

#include "base/file.h"
#include "config/checks.h"
#include "config/table.h"
#include "lockstep/error.h"

namespace lockstep::config {
namespace {

constexpr const char* kCommandLine = "command line";
constexpr std::uint64_t kMaxFileBytes = 1 << 20;
constexpr int kMaxDepth = 2;  // no key has more, and a YAML alias may contain itself

// `${NAME}` would end a plain scalar inside `{...}`. It therefore passes through YAML as NAME between two private-use
// characters (U+E000, U+E001) and is replaced in the scalars afterwards. The value of a variable is never parsed as
// YAML.
constexpr std::string_view kOpen = "\xEE\x80\x80";
constexpr std::string_view kClose = "\xEE\x80\x81";

struct Setting {
  std::string key;
  Value value;
  std::string place;  // "train.yaml:12" or "command line"
};

std::string hide_variables(std::string_view text) {
  std::string out;
  while (true) {
    const auto begin = text.find("${");
    const auto end = begin == std::string_view::npos ? begin : text.find_first_of("}\n", begin);
    if (end == std::string_view::npos || text[end] != '}') {
      const auto rest = begin == std::string_view::npos ? text.size() : begin + 2;
      out += text.substr(0, rest);
      if (rest == text.size()) return out;
      text.remove_prefix(rest);
      continue;
    }
    out += fmt::format("{}{}{}{}", text.substr(0, begin), kOpen, text.substr(begin + 2, end - begin - 2), kClose);
    text.remove_prefix(end + 1);
  }
}

bool is_variable_name(std::string_view name) {
  return !name.empty() && !std::isdigit(static_cast<unsigned char>(name.front())) &&
         std::all_of(name.begin(), name.end(), [](unsigned char c) { return std::isalnum(c) || c == '_'; });
}

std::string expand_variables(std::string_view text, const std::string& place, const std::string& key) {
  std::string out;
  for (auto begin = text.find(kOpen); begin != std::string_view::npos; begin = text.find(kOpen)) {
    const auto end = text.find(kClose, begin);
    if (end == std::string_view::npos) break;
    const std::string name(text.substr(begin + kOpen.size(), end - begin - kOpen.size()));
    require(is_variable_name(name), ErrorCode::config_environment,
            "{}: {}: expected the name of an environment variable in ${{...}}, found ${{{}}}", place, key, name);
    const char* value = std::getenv(name.c_str());
    require(value != nullptr, ErrorCode::config_environment, "{}: {}: ${{{}}} is not set in the environment", place,
            key, name);
    out += text.substr(0, begin);
    out += value;
    text.remove_prefix(end + kClose.size());
  }
  return out += text;
}

std::string expected(const Key& key) { return key.accepts.empty() ? key.type : key.type + " " + key.accepts; }

std::string shown(const Value& value) {
  if (value.is_list) return fmt::format("[{}]", fmt::join(value.items, ", "));
  return value.text.empty() ? "nothing" : "\"" + value.text + "\"";
}

/// Reads one YAML document. A syntax error is reported with its line.
YAML::Node load_yaml(const std::string& text, const std::string& source) {
  try {
    const auto documents = YAML::LoadAll(hide_variables(text));
    require(documents.size() <= 1, ErrorCode::config_syntax, "{}: expected one YAML document, found {} (`---`)", source,
            documents.size());
    return documents.empty() ? YAML::Node() : documents.front();
  } catch (const YAML::Exception& e) {
    const bool has_line = source != kCommandLine && !e.mark.is_null();
    fail(ErrorCode::config_syntax, "{}: this is not valid YAML: {}",
         has_line ? fmt::format("{}:{}", source, e.mark.line + 1) : source, e.msg);
  }
}

/// Collects the settings of a YAML tree in their order. A key that is given twice results in two settings.
class Flattener {
 public:
  Flattener(std::string source, std::vector<Setting>& out) : source_(std::move(source)), out_(out) {}

  void group(const YAML::Node& node, const std::string& prefix, int depth) {
    for (const auto& entry : node) {
      const std::string place = place_of(entry.first);
      require(entry.first.IsScalar(), ErrorCode::config_syntax,
              "{}: expected `key: value`, found a key that is not a name", place);
      entry_of(prefix + entry.first.Scalar(), entry.second, place, depth);
    }
  }

  void entry_of(const std::string& key, const YAML::Node& node, const std::string& place, int depth) {
    if (is_group(key) && !node.IsMap()) {
      require(node.IsNull(), ErrorCode::config_type, "{}: {} is a group of keys: expected `{}: {{key: value}}`", place,
              key, key);
      return;  // a group in which all keys are commented out
    }
    if (const Key* known = find_key(key); known != nullptr && node.IsMap()) {
      fail(ErrorCode::config_type, "{}: {}: expected {}, found a group of keys; a text that contains `: ` needs quotes",
           place, key, expected(*known));
    }
    if (node.IsMap() && depth < kMaxDepth) return group(node, key + ".", depth + 1);
    Setting setting{key, {}, place};
    if (node.IsSequence()) {
      setting.value.is_list = true;
      for (const auto& item : node) {
        require(item.IsScalar(), ErrorCode::config_type, "{}: {}: expected a list of simple values", place, key);
        setting.value.items.push_back(expand_variables(item.Scalar(), place, key));
      }
    } else if (node.IsScalar()) {
      setting.value.text = expand_variables(node.Scalar(), place, key);
    }
    out_.push_back(std::move(setting));
  }

 private:
  std::string place_of(const YAML::Node& node) const {
    return source_ == kCommandLine ? source_ : fmt::format("{}:{}", source_, node.Mark().line + 1);
  }

  std::string source_;
  std::vector<Setting>& out_;
};

void add_text(const std::string& text, const std::string& source, std::vector<Setting>& out) {
  const YAML::Node root = load_yaml(text, source);
  if (root.IsNull()) return;
  require(root.IsMap(), ErrorCode::config_syntax, "{}: expected lines of `key: value`, found {}", source,
          root.IsSequence() ? "a list" : "text");
  Flattener(source, out).group(root, "", 0);
}

void add_file(const std::string& path, std::vector<Setting>& out) {
  std::string text;
  try {
    text = read_file(path, kMaxFileBytes);
  } catch (const Error& e) {
    const bool is_key = find_key(path) != nullptr;
    fail(ErrorCode::config_file, "configuration file: {}{}", e.what(),
         is_key ? fmt::format("; to set the key, write {}=VALUE without blanks", path) : "");
  }
  add_text(text, path, out);
}

/// Whether it has the form `key=value`, where the part before the first `=` looks like a key.
bool is_override(const std::string& argument) {
  const auto equals = argument.find('=');
  if (equals == std::string::npos || equals == 0) return false;
  return std::all_of(argument.begin(), argument.begin() + static_cast<std::ptrdiff_t>(equals),
                     [](unsigned char c) { return std::isalnum(c) || c == '_' || c == '.' || c == '-'; });
}

void add_override(const std::string& argument, std::vector<Setting>& out) {
  const auto equals = argument.find('=');
  const std::string key = argument.substr(0, equals);
  Flattener(kCommandLine, out).entry_of(key, load_yaml(argument.substr(equals + 1), kCommandLine), kCommandLine, 0);
}

void apply(const Setting& setting, Config& config) {
  const Key* key = find_key(setting.key);
  require(key != nullptr, ErrorCode::config_unknown_key, "{}: there is no key {}; the nearest is {}", setting.place,
          setting.key, nearest_key(setting.key));
  const Fit fit = key->set(config, setting.value);
  require(fit == Fit::good, fit == Fit::wrong_type ? ErrorCode::config_type : ErrorCode::config_range,
          "{}: {}: expected {}, found {}", setting.place, setting.key, expected(*key), shown(setting.value));
  // Of these two keys, the one that is set later is in effect.
  if (key->name == "train.global_batch" && config.train.global_batch > 0) config.train.batch_per_rank = 0;
  if (key->name == "train.batch_per_rank" && config.train.batch_per_rank != 0) config.train.global_batch = 0;
}

bool is_learned(const Key& key, const Config& config) {
  return key.effect == Effect::learning || (key.effect == Effect::rounding && config.reproducible);
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
  for (const std::string& argument : arguments) {
    is_override(argument) ? add_override(argument, settings) : add_file(argument, settings);
  }
  Config config;
  Origins origins;
  for (const Setting& setting : settings) {
    apply(setting, config);
    origins[setting.key] = setting.place;
  }
  check(config, origins);
  // The order of sums over threads depends on the number of threads.
  if (config.reproducible && config.cpu.threads == 0) config.cpu.threads = 1;
  return config;
}

std::string to_yaml(const Config& config) {
  return yaml_of(config, [](const Key&) { return true; });
}

std::string learning_yaml(const Config& config) {
  return yaml_of(config, [&](const Key& key) { return is_learned(key, config) && !key.is_path; });
}

std::vector<Difference> learning_differences(const std::string& yaml_before, const Config& now) {
  std::vector<Setting> settings;
  add_text(yaml_before, "the previous configuration", settings);
  Config before;
  std::vector<std::string> keys_before;
  for (const Setting& setting : settings) {
    const Key* key = find_key(setting.key);
    if (key == nullptr) continue;  // a key of another release
    if (key->set(before, setting.value) == Fit::good) keys_before.push_back(key->name);
  }
  std::vector<Difference> differences;
  for (const Key& key : table()) {
    const bool was_set = std::find(keys_before.begin(), keys_before.end(), key.name) != keys_before.end();
    if (!(is_learned(key, now) || key.effect == Effect::epochs) || !was_set || key.get(before) == key.get(now))
      continue;
    const bool is_derived = before.train.global_batch == 0 || now.train.global_batch == 0;
    if (key.name == "train.global_batch" && is_derived) continue;
    differences.push_back({key.name, key.get(before), key.get(now), key.effect == Effect::epochs});
  }
  return differences;
}

}  // namespace lockstep::config

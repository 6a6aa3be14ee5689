#include "config/settings.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cstdint>
#include <cstdlib>
#include <map>

#include "base/file.h"
#include "config/yaml_text.h"
#include "lockstep/error.h"

namespace lockstep::config {
namespace {

constexpr std::uint64_t kMaxFileBytes = 1 << 20;
constexpr int kMaxDepth = 2;  // no key is nested deeper, and a YAML alias may contain itself

bool is_variable_name(std::string_view name) {
  return !name.empty() && !std::isdigit(static_cast<unsigned char>(name.front()));
}

std::string expanded(std::string_view text, const Setting& setting) {
  require(text.find(kBroken) == std::string_view::npos, ErrorCode::config_invalid,
          "{}: {}: expected ${{NAME}} with the name of an environment variable, found {}", setting.place, setting.key,
          show_variables(text));
  std::string out;
  for (auto begin = text.find(kOpen); begin != std::string_view::npos; begin = text.find(kOpen)) {
    const auto end = text.find(kClose, begin);
    if (end == std::string_view::npos) break;
    const std::string name(text.substr(begin + kOpen.size(), end - begin - kOpen.size()));
    require(is_variable_name(name), ErrorCode::config_invalid,
            "{}: {}: expected the name of an environment variable in ${{...}}, found ${{{}}}", setting.place,
            setting.key, name);
    const char* value = std::getenv(name.c_str());
    require(value != nullptr, ErrorCode::config_invalid,
            "{}: {}: ${{{}}} is not set in the environment: export it, or write the value itself", setting.place,
            setting.key, name);
    out += text.substr(0, begin);
    out += value;
    text.remove_prefix(end + kClose.size());
  }
  return out += text;
}

/// Collects the settings of a YAML tree in their order.
class Flattener {
 public:
  Flattener(std::string source, TextOf kind, std::vector<Setting>& out)
      : source_(std::move(source)), kind_(kind), out_(out) {}

  void group(const YAML::Node& node, const std::string& prefix, int depth) {
    std::map<std::string, std::string> seen;  // where each key of this group is
    for (const auto& entry : node) {
      const std::string place = place_of(entry.first);
      require(entry.first.IsScalar(), ErrorCode::config_unreadable,
              "{}: expected `key: value`, found a key that is not a name", place);
      require(!entry.first.Scalar().empty(), ErrorCode::config_unreadable,
              "{}: expected `key: value`, found an empty key{}", place,
              prefix.empty() ? "" : fmt::format(" in the group {}", prefix.substr(0, prefix.size() - 1)));
      const std::string key = prefix + entry.first.Scalar();
      require_new(seen, key, place);
      entry_of(key, entry.second, place, depth);
    }
  }

  void entry_of(const std::string& key, const YAML::Node& node, const std::string& place, int depth) {
    const Key* known = find_key(key);
    if (is_group(key) && !node.IsMap()) {
      require(node.IsNull(), ErrorCode::config_invalid, "{}: {} is a group of keys: expected `{}: {{key: value}}`",
              place, key, key);
      return;  // a group in which all keys are commented out
    }
    if (known != nullptr && node.IsMap()) {
      fail(ErrorCode::config_invalid,
           "{}: {}: expected {}, found a group of keys; a text that begins with {{ or contains `: ` needs quotes",
           place, key, expected(*known));
    }
    if (node.IsMap() && depth < kMaxDepth) return group(node, key + ".", depth + 1);
    Setting setting{key, {}, place};
    if (node.IsSequence()) {
      setting.value.is_list = true;
      for (const auto& item : node) {
        if (known != nullptr && !item.IsScalar())  // the value of an unknown key does not matter
          fail(ErrorCode::config_invalid, "{}: {}: expected {}, found a list that contains {}", place, key,
               expected(*known),
               item.IsSequence() ? "another list"
               : item.IsMap()    ? "a group of keys"
                                 : "an element without a value");
        setting.value.items.push_back(item.IsScalar() ? item.Scalar() : "");
      }
    } else if (node.IsScalar()) {
      setting.value.text = node.Scalar();
    }
    // `train.epochs: 3` beside `train: {epochs: 4}`
    require_new(keys_, key, place);
    out_.push_back(std::move(setting));
  }

 private:
  /// YAML forbids duplicate keys, and one of the two would be ignored silently.
  void require_new(std::map<std::string, std::string>& seen, const std::string& key, const std::string& place) {
    const auto [at, is_new] = seen.try_emplace(key, place);
    require(is_new, ErrorCode::config_unreadable, "{}: {} is given twice, first in {}; remove one of the two", place,
            key, at->second);
  }

  std::string place_of(const YAML::Node& node) const {
    return kind_ == TextOf::command_line ? source_ : fmt::format("{}:{}", source_, node.Mark().line + 1);
  }

  std::string source_;
  TextOf kind_;
  std::vector<Setting>& out_;
  std::map<std::string, std::string> keys_;  // where each key of the whole text is
};

void add_file(const std::string& path, std::vector<Setting>& out) {
  std::string text;
  try {
    text = read_file(path, kMaxFileBytes);
  } catch (const Error& e) {
    const bool is_key = find_key(path) != nullptr;
    const bool is_setting = path.find('=') != std::string::npos;
    fail(ErrorCode::config_unreadable, "configuration file: {}{}", e.what(),
         is_key       ? fmt::format("; to set the key, write {}=VALUE without blanks", path)
         : is_setting ? "; to set a key, write KEY=VALUE without blanks before the `=`"
                      : "");
  }
  check_is_text(text, path);
  add_text(text, path, out);
}

/// Whether the argument has the form `key=value`, where the part before the first `=` looks like a key.
bool is_override(const std::string& argument) {
  const auto equals = argument.find('=');
  if (equals == std::string::npos || equals == 0) return false;
  return std::all_of(argument.begin(), argument.begin() + static_cast<std::ptrdiff_t>(equals),
                     [](unsigned char c) { return std::isalnum(c) || c == '_' || c == '.' || c == '-'; });
}

void add_override(const std::string& argument, std::vector<Setting>& out) {
  const auto equals = argument.find('=');
  const std::string key = argument.substr(0, equals), text = hide_variables(argument.substr(equals + 1));
  const Key* known = find_key(key);
  // Of a text that begins like this, YAML would read only the rest, or nothing.
  const std::string begin = text.substr(std::min(text.size(), text.find_first_not_of(' '))) + ' ';
  for (const char* mark : {"%", "&", "!", "|", ">", "--- ", "... "})
    require(!begin.starts_with(mark), ErrorCode::config_unreadable,
            "{}: {}: found {}, which has another meaning in YAML; put it in quotes: {}='\"{}\"'", kCommandLine, key,
            argument.substr(equals + 1), key, argument.substr(equals + 1));
  // A name may begin with a placeholder, as in checkpoint.name={model}-{step}, a command line has no comments, and YAML
  // would replace the end of a line by a blank.
  const bool is_quoted = text.starts_with('"') || text.starts_with('\'');
  const bool is_literal = text.starts_with('{') || text.starts_with('#') || text.find('\n') != std::string::npos ||
                          (!is_quoted && text.find(" #") != std::string::npos);
  if (known != nullptr && known->is_text && is_literal) {
    out.push_back({key, {.is_list = false, .text = text, .items = {}}, kCommandLine});
    return;
  }
  const std::string source = fmt::format("{}: {}", kCommandLine, key);
  Flattener(kCommandLine, TextOf::command_line, out)
      .entry_of(key, load_yaml(text, source, TextOf::command_line), kCommandLine, 0);
}

}  // namespace

void add_text(const std::string& text, const std::string& source, std::vector<Setting>& out) {
  const YAML::Node root = load_yaml(hide_variables(text), source, TextOf::file);
  if (root.IsNull()) return;
  require(root.IsMap(), ErrorCode::config_unreadable, "{}: expected lines of `key: value`, found {}", source,
          root.IsSequence() ? "a list" : "text");
  Flattener(source, TextOf::file, out).group(root, "", 0);
}

void add_argument(const std::string& argument, std::vector<Setting>& out) {
  require(!argument.starts_with('='), ErrorCode::config_unreadable, "{}: expected KEY=VALUE, found `{}` without a key",
          kCommandLine, argument);
  require(!argument.empty(), ErrorCode::config_unreadable,
          "{}: expected a YAML file or KEY=VALUE, found an empty argument", kCommandLine);
  is_override(argument) ? add_override(argument, out) : add_file(argument, out);
}

bool has_variables(const Setting& setting) {
  const auto is_variable = [](const std::string& text) {
    return text.find(kOpen) != std::string::npos || text.find(kBroken) != std::string::npos;
  };
  return is_variable(setting.value.text) || std::ranges::any_of(setting.value.items, is_variable);
}

void expand_variables(Setting& setting) {
  setting.value.text = expanded(setting.value.text, setting);
  for (std::string& item : setting.value.items) item = expanded(item, setting);
}

std::string expected(const Key& key) { return key.accepts.empty() ? key.type : key.type + " " + key.accepts; }

}  // namespace lockstep::config

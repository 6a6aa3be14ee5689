// `lockstep help config`, from the table.
#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "config/parser.h"
#include "config/table.h"
#include "lockstep/error.h"

namespace lockstep::config {
namespace {

/// The mark of a key in the list, which the text above the list explains.
const char* mark(Effect effect) { return effect == Effect::learning ? "* " : effect == Effect::fixed ? "! " : "  "; }

std::string when_resumed(const Key& key) {
  switch (key.effect) {
    case Effect::learning:
      return "may change only with --allow-change " + key.name;
    case Effect::fixed:
      return "can never change";
    case Effect::epochs:
      return "may change, and the schedule with it";
    case Effect::rounding:
      return "may change; if reproducible, only with --allow-change " + key.name;
    case Effect::none:
      break;
  }
  return "may change";
}

constexpr std::string_view kMarks =
    "When a run is resumed, keys without a mark may change.\n"
    "  *  affects what is learned: may change only if it is named with --allow-change\n"
    "  !  determines the shapes of the weights or what a step is: can never change; start a new run with\n"
    "     model.initialize_from=CHECKPOINT\n";

/// One line per key, in columns; a blank line between groups.
std::string list(const std::vector<const Key*>& keys) {
  const Config defaults;
  std::vector<std::array<std::string, 5>> rows{{"  key", "default", "unit", "accepts", "meaning"}};
  for (const Key* key : keys)
    rows.push_back({mark(key->effect) + key->name, key->get(defaults), key->unit,
                    key->accepts.empty() ? key->type : key->accepts, key->meaning});
  std::array<std::size_t, 5> widths{};
  for (const auto& row : rows)
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());

  std::string text, group_before;
  for (const auto& row : rows) {
    const auto dot = row[0].find('.');
    const std::string group = dot == std::string::npos ? "" : row[0].substr(2, dot - 2);
    if (group != group_before) text += "\n";
    group_before = group;
    for (std::size_t i = 0; i + 1 < row.size(); ++i) text += fmt::format("{:{}}  ", row[i], widths[i]);
    text += row.back() + "\n";
  }
  return text;
}

/// Explains one key in full. `model.depth` becomes `model: {depth: 18}` in a file.
std::string explanation(const Key& key) {
  const std::string value = key.get(Config{});
  const auto dot = key.name.find('.');
  const std::string in_file = dot == std::string::npos ? fmt::format("{}: {}", key.name, value)
                                                       : fmt::format("{}: {{{}: {}}}", key.name.substr(0, dot),
                                                                     key.name.substr(dot + 1), value);
  std::string text = fmt::format("{}\n  {}\n\n", key.name, key.meaning);
  const auto line = [&](std::string_view what, std::string_view is) { text += fmt::format("  {:14}  {}\n", what, is); };
  line("default", value == "\"\"" ? "empty" : value);
  line("accepts", key.accepts.empty() ? key.type : key.accepts);
  if (!key.unit.empty()) line("unit", key.unit);
  line("when resumed", when_resumed(key));
  line("in a file", in_file);
  line("as an argument", fmt::format("{}={}", key.name, value == "\"\"" ? "" : value));
  return text;
}

template <typename Select>
std::vector<const Key*> visible_keys(Select is_selected) {
  std::vector<const Key*> keys;
  for (const Key& key : table())
    if (!key.is_hidden && is_selected(key)) keys.push_back(&key);
  return keys;
}

}  // namespace

std::string help_text() {
  return fmt::format(
      "All configuration keys. In a file, write `train: {{epochs: 3}}`; on the command line, after the files,\n"
      "train.epochs=3. If several files are given, a later file overrides an earlier one. ${{NAME}} in a value is "
      "replaced\n"
      "by the environment variable of that name. `lockstep help config KEY` explains one key.\n"
      "{}\n{}",
      kMarks, list(visible_keys([](const Key&) { return true; })));
}

std::string help_text(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) {
    if (!text.empty()) text += "\n";
    const Key* key = find_key(name);
    if (key != nullptr) {
      text += explanation(*key);
      continue;
    }
    require(is_group(name), ErrorCode::config_invalid, "there is no key or group {}{}", name, nearest_text(name));
    text +=
        fmt::format("{}\n{}", kMarks, list(visible_keys([&](const Key& k) { return k.name.starts_with(name + "."); })));
  }
  return text;
}

}  // namespace lockstep::config

// `lockstep help config`, from the table.
#include <fmt/format.h>

#include <algorithm>

#include "config/parser.h"
#include "config/table.h"

namespace lockstep::config {

std::string help_text() {
  const Config defaults;
  struct Row {
    std::string key, value, unit, takes, meaning;
  };
  std::vector<Row> rows{{"key", "default", "unit", "takes", "meaning"}};
  for (const Key& key : table()) {
    rows.push_back({(key.effect == Effect::learning ? "* " : "  ") + key.name, key.get(defaults), key.unit,
                    key.takes.empty() ? key.type : key.takes, key.meaning});
  }
  rows.front().key = "  key";
  const auto width = [&](std::string Row::*column) {
    std::size_t widest = 0;
    for (const Row& row : rows) widest = std::max(widest, (row.*column).size());
    return widest;
  };
  const std::size_t key = width(&Row::key), value = width(&Row::value), unit = width(&Row::unit);
  const std::size_t takes = width(&Row::takes);

  std::string text =
      "Every key of a configuration. In a file: `train: {epochs: 3}`; behind it on the command line: train.epochs=3.\n"
      "Several files may be given; the later given wins. ${NAME} in a value is the environment's.\n"
      "* changes what is learned: when a run is resumed it must stay, unless named with --allow-change.\n\n";
  std::string group_before;
  for (const Row& row : rows) {
    const std::string group = row.key.substr(0, row.key.find('.')).substr(2);
    const bool is_grouped = row.key.find('.') != std::string::npos;
    if (is_grouped ? group != group_before : !group_before.empty()) text += "\n";
    group_before = is_grouped ? group : "";
    text += fmt::format("{:{}}  {:{}}  {:{}}  {:{}}  {}\n", row.key, key, row.value, value, row.unit, unit, row.takes,
                        takes, row.meaning);
  }
  return text;
}

}  // namespace lockstep::config

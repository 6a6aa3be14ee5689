// `lockstep help config`, from the table.
#include <fmt/format.h>

#include <algorithm>

#include "config/parser.h"
#include "config/table.h"

namespace lockstep::config {

std::string help_text() {
  const Config defaults;
  struct Row {
    std::string key, value, unit, accepts, meaning;
  };
  std::vector<Row> rows{{"key", "default", "unit", "accepts", "meaning"}};
  for (const Key& key : table()) {
    if (key.is_hidden) continue;
    rows.push_back({(key.effect == Effect::learning ? "* " : "  ") + key.name, key.get(defaults), key.unit,
                    key.accepts.empty() ? key.type : key.accepts, key.meaning});
  }
  rows.front().key = "  key";
  const auto width = [&](std::string Row::*column) {
    std::size_t widest = 0;
    for (const Row& row : rows) widest = std::max(widest, (row.*column).size());
    return widest;
  };
  const std::size_t key = width(&Row::key), value = width(&Row::value), unit = width(&Row::unit);
  const std::size_t accepts = width(&Row::accepts);

  std::string text =
      "All configuration keys. In a file, write `train: {epochs: 3}`; on the command line, after the files,\n"
      "train.epochs=3. If several files are given, a later file overrides an earlier one. ${NAME} in a value is "
      "replaced\n"
      "by the environment variable of that name.\n"
      "Keys with * affect what is learned. They must not change when a run is resumed, unless they are named with\n"
      "--allow-change.\n\n";
  std::string group_before;
  for (const Row& row : rows) {
    const std::string group = row.key.substr(0, row.key.find('.')).substr(2);
    const bool is_grouped = row.key.find('.') != std::string::npos;
    if (is_grouped ? group != group_before : !group_before.empty()) text += "\n";
    group_before = is_grouped ? group : "";
    text += fmt::format("{:{}}  {:{}}  {:{}}  {:{}}  {}\n", row.key, key, row.value, value, row.unit, unit, row.accepts,
                        accepts, row.meaning);
  }
  return text;
}

}  // namespace lockstep::config

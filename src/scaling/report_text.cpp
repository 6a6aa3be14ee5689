// The report as plain text and as Markdown.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "scaling/report.h"

namespace lockstep::scaling {
namespace {

/// The width on a terminal: every character here takes one column, including "±", which has two bytes.
std::size_t width_of(const std::string& text) {
  return static_cast<std::size_t>(
      std::ranges::count_if(text, [](char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; }));
}

/// All columns are aligned on the right, except those of names.
std::string aligned(const Table& table) {
  std::vector<std::size_t> widths;
  for (const std::string& title : table.header) widths.push_back(width_of(title));
  for (const auto& row : table.rows)
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], width_of(row[i]));
  std::string text;
  const auto add = [&](const std::vector<std::string>& row) {
    std::string line;
    for (std::size_t i = 0; i < row.size(); ++i) {
      const std::string blanks(widths[i] - width_of(row[i]), ' ');
      const bool is_name = table.header[i] == "figure" || table.header[i] == "unit";
      line += (i == 0 ? "" : "  ") + (is_name ? row[i] + blanks : blanks + row[i]);
    }
    text += line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
  };
  add(table.header);
  for (const auto& row : table.rows) add(row);
  return text;
}

std::string markdown_of(const Table& table) {
  std::string text;
  const auto add = [&](const std::vector<std::string>& row) { text += fmt::format("| {} |\n", fmt::join(row, " | ")); };
  add(table.header);
  add(std::vector<std::string>(table.header.size(), "---"));
  for (const auto& row : table.rows) add(row);
  return text;
}

}  // namespace

std::string text_report(const Results& results) {
  std::string text = fmt::format("{}\n{}\nbuild: {}\n\nSPEEDUP ANALYSIS\n{}\n", results.study.directory,
                                 description_of(results.study), results.study.build, baseline_text(results));
  text += aligned(speedup_table(results));
  text += "\nFIGURES\n" + aligned(figure_table(results));
  if (results.model) text += "\n" + text_of(*results.model);
  if (!results.predictions.empty()) text += "\nPREDICTIONS\n" + aligned(prediction_table(results));
  const std::vector<std::string> notes = notes_of(results);
  if (!notes.empty()) text += "\nNOTES\n";
  for (const std::string& note : notes) text += note + "\n";
  text += "\n± and the intervals are 95 % confidence intervals of the mean (Student's t).\n";
  return text;
}

std::string markdown_report(const Results& results) {
  std::string text = fmt::format("# Scaling study\n\n- {}\n- {}\n- build: {}\n\n## Speedup analysis\n\n",
                                 description_of(results.study), baseline_text(results), results.study.build);
  text += markdown_of(speedup_table(results));
  text += "\n± is half of the 95 % confidence interval of the mean (Student's t).\n\n## Figures\n\n";
  text += markdown_of(figure_table(results));
  if (results.model) text += fmt::format("\n## Cost model\n\n```\n{}```\n", text_of(*results.model));
  if (!results.predictions.empty()) text += "\n## Predictions\n\n" + markdown_of(prediction_table(results));
  const std::vector<std::string> notes = notes_of(results);
  if (!notes.empty()) text += "\n## Notes\n\n";
  for (const std::string& note : notes) text += fmt::format("- {}\n", note);
  return text;
}

}  // namespace lockstep::scaling

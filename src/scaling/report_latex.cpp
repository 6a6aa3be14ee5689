// The report as two tables for LaTeX, which need the package booktabs, and a comment with the notes.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "scaling/report.h"

namespace lockstep::scaling {
namespace {

std::string escaped(const std::string& text) {
  std::string result;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const std::string_view rest = std::string_view(text).substr(i);
    if (rest.starts_with("±")) {
      result += "$\\pm$";
      ++i;
    } else if (std::string_view("&%$#_{}").find(text[i]) != std::string_view::npos) {
      result += fmt::format("\\{}", text[i]);
    } else if (text[i] == '\\') {
      result += "\\textbackslash{}";
    } else if (text[i] == '~' || text[i] == '^') {
      result += fmt::format("\\{}{{}}", text[i]);
    } else {
      result += text[i];
    }
  }
  return result;
}

std::string table_of(const Table& table, const std::string& caption) {
  std::string columns, rows;
  for (const std::string& title : table.header) columns += title == "figure" || title == "unit" ? "l" : "r";
  const auto line = [](const std::vector<std::string>& row) {
    std::vector<std::string> cells;
    for (const std::string& cell : row) cells.push_back(escaped(cell));
    return fmt::format("    {} \\\\\n", fmt::join(cells, " & "));
  };
  for (const auto& row : table.rows) rows += line(row);
  return fmt::format(
      "\\begin{{table}}\n  \\centering\n  \\caption{{{}}}\n  \\begin{{tabular}}{{{}}}\n    \\toprule\n{}    "
      "\\midrule\n{}    \\bottomrule\n  \\end{{tabular}}\n\\end{{table}}\n",
      escaped(caption), columns, line(table.header), rows);
}

}  // namespace

std::string latex_report(const Results& results) {
  std::string text = "% Needs \\usepackage{booktabs}. ± is half of the 95 % confidence interval of the mean.\n";
  text += fmt::format("% build: {}\n", results.study.build);
  for (const std::string& note : notes_of(results)) text += fmt::format("% {}\n", note);
  text += table_of(speedup_table(results),
                   fmt::format("Speedup analysis: {}; {}.", description_of(results.study), baseline_text(results)));
  text +=
      "\n" + table_of(figure_table(results), fmt::format("Figures of the study: {}.", description_of(results.study)));
  if (!results.predictions.empty())
    text += "\n" + table_of(prediction_table(results), "Predictions of the cost model, and what was measured later.");
  return text;
}

}  // namespace lockstep::scaling

#include "scaling/report.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/numbers.h"
#include "base/utf8.h"
#include "scaling/predictions.h"

namespace lockstep::scaling {
namespace {

constexpr double kMebibyte = 1 << 20;

std::string with_interval(const Figure& figure, double factor = 1) {
  if (figure.n == 0) return "-";
  const std::string mean = number_text(factor * figure.mean);
  return std::isfinite(figure.half_width) ? fmt::format("{} ± {}", mean, number_text(factor * figure.half_width))
                                          : mean;
}

std::string cases_text(const SizeResult& size) { return fmt::format("{} of {}", size.n_averaged, size.n_cases); }

Figure measured_by_now(const Results& results, const CostSize& size) {
  const auto found = std::ranges::find_if(
      results.sizes, [&](const SizeResult& each) { return each.ranks == size.ranks && each.nodes == size.nodes; });
  return found == results.sizes.end() ? Figure{} : found->step_seconds;
}

}  // namespace

std::string number_text(double value) {
  if (!std::isfinite(value)) return "-";
  constexpr double kLeastFixed = 1e-9, kMostFixed = 1e7;
  constexpr int kDigits = 4;
  const double size = std::abs(value);
  if (size >= 1000 && size < kMostFixed) return fmt::format("{:.0f}", value);
  if (size < kLeastFixed || size >= 1e-4) return fmt::format("{:.{}g}", value, kDigits);
  const int n_zeros = static_cast<int>(-std::floor(std::log10(size))) - 1;  // after the decimal point
  std::string text = fmt::format("{:.{}f}", value, n_zeros + kDigits);
  text.erase(text.find_last_not_of('0') + 1);
  return text;
}

std::vector<ReportedFigure> reported_figures(const Results& results) {
  const std::string unit = results.unit.empty() ? "samples" : results.unit;
  std::vector<ReportedFigure> figures{
      {"loss", "training loss", "", &SizeResult::loss},
      {"accuracy", "training accuracy", "%", &SizeResult::accuracy, 100},
      {unit + "_per_second", "throughput", unit + "/s", &SizeResult::rate},
      {"step_seconds", "time of a step", "s", &SizeResult::step_seconds},
      {"speedup", "speedup", "", &SizeResult::speedup},
      {"efficiency", "parallel efficiency", "%", &SizeResult::efficiency, 100},
      {"memory_peak_bytes", "memory, peak", "MiB per rank", &SizeResult::memory_peak, 1 / kMebibyte},
      {"memory_mean_bytes", "memory, average", "MiB per rank", &SizeResult::memory_mean, 1 / kMebibyte},
      {"memory_mode_bytes", "memory, mode", "MiB per rank", &SizeResult::memory_mode, 1 / kMebibyte},
      {"utilisation", "utilisation", "%", &SizeResult::utilisation, 100},
      {"model_flops_rate", "FLOPs of the model", "GFLOP/s", &SizeResult::model_flops_rate, 1e-9},
      {"model_flops_utilization", "MFU", "%", &SizeResult::model_flops_utilization, 100},
      {"exposed_communication_seconds", "exposed communication", "ms per step",
       &SizeResult::exposed_communication_seconds, 1000},
      {"data_wait_seconds", "waiting for data", "ms per step", &SizeResult::data_wait_seconds, 1000}};
  std::erase_if(figures, [&](const ReportedFigure& figure) {
    const bool not_always = figure.key == "accuracy" || figure.key.starts_with("model_flops_");
    return not_always &&
           std::ranges::none_of(results.sizes, [&](const SizeResult& size) { return (size.*figure.member).n > 0; });
  });
  return figures;
}

Table speedup_table(const Results& results) {
  const std::string unit = results.unit.empty() ? "samples" : results.unit;
  Table table{.header = {"ranks", "nodes", "cases", "average, s per step", unit + "/s", "speedup", "efficiency, %"}};
  for (const SizeResult& size : results.sizes)
    table.rows.push_back({std::to_string(size.ranks), std::to_string(size.nodes), cases_text(size),
                          with_interval(size.step_seconds), with_interval(size.rate), with_interval(size.speedup),
                          with_interval(size.efficiency, 100)});
  return table;
}

Table figure_table(const Results& results) {
  Table table{.header = {"ranks", "nodes", "figure", "unit", "mean", "95 % interval", "least", "greatest"}};
  for (const SizeResult& size : results.sizes) {
    if (size.n_averaged == 0) continue;
    for (const ReportedFigure& reported : reported_figures(results)) {
      const Figure figure = scaled(size.*reported.member, reported.factor);
      const bool has_interval = std::isfinite(figure.half_width);
      table.rows.push_back(
          {std::to_string(size.ranks), std::to_string(size.nodes), reported.title, reported.unit,
           number_text(figure.mean),
           has_interval ? fmt::format("{} to {}", number_text(figure.low()), number_text(figure.high())) : "-",
           number_text(figure.minimum), number_text(figure.maximum)});
    }
  }
  return table;
}

Table prediction_table(const Results& results) {
  Table table{.header = {"ranks", "nodes", "ranks per core", "predicted, s per step", "95 % interval",
                         "measured, s per step", "difference, %", "fitted to ranks"}};
  for (const StoredPrediction& p : results.predictions) {
    const Figure measured = measured_by_now(results, p.size);
    table.rows.push_back({std::to_string(p.size.ranks), std::to_string(p.size.nodes), sharing_text(p.size),
                          number_text(p.step_seconds()),
                          fmt::format("{} to {}", number_text(p.low), number_text(p.high)), with_interval(measured),
                          measured.n == 0 ? "-" : fmt::format("{:+.1f}", 100 * (p.step_seconds() / measured.mean - 1)),
                          fmt::format("{}", fmt::join(p.fitted_to_ranks, ", "))});
  }
  return table;
}

std::string description_of(const Study& study) {
  return fmt::format("{} scaling, {} of {}; {} steps, of which the first {} are the warm-up; {}",
                     text_of(study.scaling), study.scaling == Scaling::strong ? "a global batch" : "a batch per rank",
                     counted(study.batch, "sample"), study.steps, study.warmup_steps, counted(study.repeats, "repeat"));
}

std::string baseline_text(const Results& results) {
  const SizeResult& baseline = results.baseline();
  const std::string where = fmt::format("{} on {}", counted(baseline.ranks, "rank"), counted(baseline.nodes, "node"));
  if (baseline.n_averaged == 0) return fmt::format("baseline: {}, not measured", where);
  return fmt::format("baseline: {} s per step on {}, the mean of {}", number_text(baseline.step_seconds.mean), where,
                     counted(baseline.n_averaged, "case"));
}

std::vector<std::string> notes_of(const Results& results) {
  std::vector<std::string> notes;
  for (const CaseResult& each : results.cases)
    for (const Rejection& rejection : each.rejections)
      notes.push_back(fmt::format("{}: {} ({}): {}.", each.of.name,
                                  each.is_averaged ? "averaged (--accept)" : "rejected", name_of(rejection.reason),
                                  rejection.text));
  notes.insert(notes.end(), results.remarks.begin(), results.remarks.end());
  return notes;
}

// The report as plain text and as Markdown.

namespace {

/// All columns are aligned on the right, except those of names. Every character here takes one column on a terminal.
std::string aligned(const Table& table) {
  std::vector<std::size_t> widths;
  for (const std::string& title : table.header) widths.push_back(n_characters(title));
  for (const auto& row : table.rows)
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], n_characters(row[i]));
  std::string text;
  const auto add = [&](const std::vector<std::string>& row) {
    std::string line;
    for (std::size_t i = 0; i < row.size(); ++i) {
      const std::string blanks(widths[i] - n_characters(row[i]), ' ');
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

// The report as two tables for LaTeX, which need the package booktabs, and a comment with the notes.

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

// The report for programs: CSV with one line per size and figure, and JSON, which also has the cases. Both have the
// units of the keys and full precision. An unknown number is empty in CSV, and null in JSON.

namespace {

using Json = nlohmann::ordered_json;

std::string exact(double value) { return std::isfinite(value) ? fmt::format("{}", value) : ""; }

Json json_of(const Figure& figure) {
  return {{"n", figure.n},
          {"mean", figure.mean},
          {"interval_low", figure.low()},
          {"interval_high", figure.high()},
          {"minimum", figure.minimum},
          {"maximum", figure.maximum},
          {"deviation", figure.deviation}};
}

Json json_of(const CaseResult& result) {
  Json rejections = Json::array(), hosts = Json::array();
  for (const Rejection& rejection : result.rejections)
    rejections.push_back({{"reason", name_of(rejection.reason)}, {"text", rejection.text}});
  Json object{{"name", result.of.name},         {"ranks", result.of.ranks},
              {"nodes", result.of.nodes},       {"repeat", result.of.repeat},
              {"finished", !!result.measured},  {"averaged", result.is_averaged},
              {"rejections", rejections},       {"step_seconds", result.step_seconds},
              {"units_per_second", result.rate}};
  if (!result.measured) return object;
  for (const Host& host : result.measured->hosts)
    hosts.push_back(
        {{"name", host.name}, {"ranks", host.ranks}, {"cores", host.cores}, {"busy_cores_of_others", host.busy}});
  object["seconds"] = result.measured->seconds;
  object["build"] = result.measured->build;
  object["hosts"] = hosts;
  object["other_jobs"] = result.measured->other_jobs;
  return object;
}

}  // namespace

std::string csv_report(const Results& results) {
  std::string text = "ranks,nodes,cases,averaged,figure,mean,interval_low,interval_high,minimum,maximum,deviation\n";
  for (const SizeResult& size : results.sizes)
    for (const ReportedFigure& reported : reported_figures(results)) {
      const Figure& figure = size.*reported.member;
      text += fmt::format("{},{},{},{},{},{},{},{},{},{},{}\n", size.ranks, size.nodes, size.n_cases, size.n_averaged,
                          reported.key, exact(figure.mean), exact(figure.low()), exact(figure.high()),
                          exact(figure.minimum), exact(figure.maximum), exact(figure.deviation));
    }
  for (const StoredPrediction& p : results.predictions)
    text += fmt::format("{},{},0,0,predicted_step_seconds,{},{},{},,,\n", p.size.ranks, p.size.nodes,
                        exact(p.step_seconds()), exact(p.low), exact(p.high));
  return text;
}

std::string json_report(const Results& results) {
  const Study& study = results.study;
  Json object{{"directory", study.directory}};
  object.update(settings_json(study));
  object["unit"] = results.unit.empty() ? Json() : Json(results.unit);
  object["baseline"] = {{"ranks", results.baseline().ranks},
                        {"nodes", results.baseline().nodes},
                        {"step_seconds", results.baseline().step_seconds.mean}};
  object["sizes"] = Json::array();
  object["cases"] = Json::array();
  object["remarks"] = results.remarks;
  for (const SizeResult& size : results.sizes) {
    Json figures = Json::object();
    for (const ReportedFigure& reported : reported_figures(results))
      figures[reported.key] = json_of(size.*reported.member);
    object["sizes"].push_back({{"ranks", size.ranks},
                               {"nodes", size.nodes},
                               {"cases", size.n_cases},
                               {"averaged", size.n_averaged},
                               {"rejected", size.n_rejected},
                               {"figures", figures}});
  }
  for (const CaseResult& each : results.cases) object["cases"].push_back(json_of(each));
  object["model"] = results.model ? scaling::json_of(*results.model) : Json();
  object["predictions"] = Json::array();
  for (const StoredPrediction& stored : results.predictions) object["predictions"].push_back(scaling::json_of(stored));
  return object.dump(2, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace) + "\n";
}

}  // namespace lockstep::scaling

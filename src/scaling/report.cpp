#include "scaling/report.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/numbers.h"
#include "base/utf8.h"
#include "run/metrics_file.h"
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

std::string name_of(const SizeResult& size, const Results& results) {
  const char* const device = results.has_gpus ? "GPU" : "rank";
  const std::string kind = size.ranks == results.baseline().ranks && size.nodes == results.baseline().nodes ? "Baseline"
                           : size.nodes > 1 ? "Multi-node"
                                            : fmt::format("Multi-{}", device);
  if (size.ranks == 1) return fmt::format("{} (Single {})", kind, device);
  return fmt::format("{} ({}, {})", kind, counted(size.ranks, device), counted(size.nodes, "node"));
}

std::vector<ReportedFigure> reported_figures(const Results& results) {
  const std::string unit = results.unit.empty() ? "samples" : results.unit;
  const std::string device = results.has_gpus ? "GPU 0" : "rank 0";
  std::vector<ReportedFigure> figures{
      {"loss", "training", &SizeResult::loss},
      {"accuracy", "training", &SizeResult::accuracy},
      {"validation_loss", "validation", &SizeResult::validation_loss},
      {"validation_accuracy", "validation", &SizeResult::validation_accuracy},
      {unit + "_per_second", unit + "/s", &SizeResult::rate},
      {"memory_peak_bytes", device + " peak, MiB", &SizeResult::memory_peak, Shown::figures, 1 / kMebibyte},
      {"memory_mean_bytes", device + " average, MiB", &SizeResult::memory_mean, Shown::figures, 1 / kMebibyte},
      {"memory_mode_bytes", device + " mode, MiB", &SizeResult::memory_mode, Shown::figures, 1 / kMebibyte},
      {"throughput_scaling", "throughput scaling", &SizeResult::rate_scaling},
      {"memory_mean_scaling", "memory average scaling", &SizeResult::memory_scaling},
      {"speedup", "speedup", &SizeResult::speedup, Shown::speedups},
      {"efficiency", "parallel efficiency", &SizeResult::efficiency, Shown::speedups},
      {"training_seconds", "", &SizeResult::training_seconds, Shown::times},
      {"step_seconds", "", &SizeResult::step_seconds, Shown::times},
      {"utilisation", "", &SizeResult::utilisation, Shown::times},
      {"model_flops_rate", "", &SizeResult::model_flops_rate, Shown::times},
      {"model_flops_utilization", "", &SizeResult::model_flops_utilization, Shown::times},
      {"exposed_communication_seconds", "", &SizeResult::exposed_communication_seconds, Shown::times},
      {"data_wait_seconds", "", &SizeResult::data_wait_seconds, Shown::times}};
  for (ReportedFigure& figure : figures) {
    const run::Curve curve = run::curve_of(figure.key);
    if (curve.title.empty()) continue;  // it is not in metrics.jsonl
    figure.title += fmt::format("{}{}{}{}", figure.title.empty() ? "" : " ", curve.title,
                                curve.unit.empty() ? "" : ", ", curve.unit);
    figure.factor = curve.factor;
  }
  std::erase_if(figures, [&](const ReportedFigure& figure) {
    const auto is_measured = [&](const SizeResult& size) { return (size.*figure.member).n > 0; };
    const bool is_always = figure.key == "loss" || figure.key.starts_with("memory_") || figure.shown == Shown::speedups;
    if (figure.key == "training_seconds" && !results.is_timed_as_a_whole()) return true;
    return !is_always && std::ranges::none_of(results.sizes, is_measured);
  });
  return figures;
}

Table speedup_table(const Results& results) {
  const std::string unit = results.unit.empty() ? "samples" : results.unit;
  const bool is_whole = results.is_timed_as_a_whole();
  Table table{.header = {"configuration", "cases", is_whole ? "average, s" : "average, s per step", unit + "/s",
                         "speedup", "efficiency, %"}};
  for (const SizeResult& size : results.sizes)
    table.rows.push_back({name_of(size, results), cases_text(size),
                          with_interval(is_whole ? size.training_seconds : size.step_seconds), with_interval(size.rate),
                          with_interval(size.speedup), with_interval(size.efficiency, 100)});
  return table;
}

Table figure_table(const Results& results, Shown shown) {
  Table table{.header = {"configuration"}};
  std::vector<ReportedFigure> figures = reported_figures(results);
  std::erase_if(figures, [&](const ReportedFigure& figure) { return figure.shown != shown; });
  for (const ReportedFigure& figure : figures) table.header.push_back(figure.title);
  for (const SizeResult& size : results.sizes) {
    if (size.n_averaged == 0) continue;
    table.rows.push_back({name_of(size, results)});
    for (const ReportedFigure& figure : figures)
      table.rows.back().push_back(number_text(figure.factor * (size.*figure.member).mean));
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
  const std::string work =
      study.steps > 0 ? fmt::format("{} steps, of which the first {} are the warm-up", study.steps, study.warmup_steps)
      : study.epochs > 0 ? counted(study.epochs, "epoch")
                         : "";
  return fmt::format("{} scaling, {} of {}; {}", text_of(study.scaling),
                     study.scaling == Scaling::strong ? "a global batch" : "a batch per rank",
                     counted(study.batch, "sample"),
                     work.empty() ? counted(study.cases.size(), "finished run")
                                  : fmt::format("{}; {}", work, counted(study.repeats, "repeat")));
}

std::string baseline_text(const Results& results) {
  const SizeResult& baseline = results.baseline();
  const std::string name = name_of(baseline, results);
  if (baseline.n_averaged == 0) return fmt::format("{}: not measured", name);
  const std::string time = results.is_timed_as_a_whole()
                               ? fmt::format("{:.2f} seconds", baseline.training_seconds.mean)
                               : fmt::format("{} s per step", number_text(baseline.step_seconds.mean));
  return fmt::format("{}: {}, the mean of {}", name, time, counted(baseline.n_averaged, "case"));
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
      line += (i == 0 ? "" : "  ") + (table.header[i] == "configuration" ? row[i] + blanks : blanks + row[i]);
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
  std::string text = fmt::format("{}{}{}\nbuild: {}\n\nSPEEDUP ANALYSIS\n{}\n\n", results.study.directory,
                                 results.study.directory.empty() ? "" : "\n", description_of(results.study),
                                 results.study.build, baseline_text(results));
  text += aligned(speedup_table(results));
  text += "\nFIGURES\n" + aligned(figure_table(results, Shown::figures));
  text += "\nTIMES\n" + aligned(figure_table(results, Shown::times));
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
  text += markdown_of(figure_table(results, Shown::figures));
  text += "\n## Times\n\n" + markdown_of(figure_table(results, Shown::times));
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
  for (const std::string& title : table.header) columns += title == "configuration" ? "l" : "r";
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
  for (const auto& [shown, what] : {std::pair(Shown::figures, "Figures"), {Shown::times, "Times"}})
    text += "\n" + table_of(figure_table(results, shown), fmt::format("{}: {}.", what, description_of(results.study)));
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

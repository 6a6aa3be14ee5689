// lockstep scaling report: how a study or finished runs scale, as text, tables, JSON or one HTML page.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/numbers.h"
#include "commands/commands.h"
#include "commands/model_argument.h"
#include "commands/report.h"
#include "lockstep/error.h"
#include "page/page.h"
#include "page/ticks.h"
#include "scaling/case_files.h"
#include "scaling/predictions.h"
#include "scaling/report.h"
#include "scaling/results.h"
#include "scaling/study.h"

namespace lockstep::commands {
namespace {

using page::LineChart;
using page::Page;
using page::Point;
using page::Row;
using page::Series;
using page::StackedBars;
using page::Style;
using page::value_text;
using scaling::Figure;
using scaling::Prediction;
using scaling::Results;
using scaling::SizeResult;

/// "8" or, if the study has several nodes, "8 on 4".
std::string size_text(const SizeResult& size, const Results& results) {
  const bool has_nodes = std::ranges::any_of(results.sizes, [](const SizeResult& each) { return each.nodes > 1; });
  return has_nodes ? fmt::format("{} on {}", size.ranks, size.nodes) : std::to_string(size.ranks);
}

std::string x_label(const Results& results) {
  return size_text(results.baseline(), results).find(" on ") == std::string::npos ? "ranks" : "ranks on nodes";
}

/// The numbers of ranks that were run or predicted, on a logarithmic axis if they are powers rather than steps.
page::Axis ranks_axis(const Results& results) {
  std::set<double> ranks;
  for (const SizeResult& size : results.sizes) ranks.insert(size.ranks);
  for (const scaling::StoredPrediction& each : results.predictions) ranks.insert(each.size.ranks);
  page::Axis axis{.label = "ranks", .is_whole = true, .ticks = {ranks.begin(), ranks.end()}};
  axis.is_logarithmic = *ranks.rbegin() >= 4 * *ranks.begin();
  return axis;
}

Point point_of(double x, const Figure& figure, double factor = 1) {
  return {.x = x, .y = factor * figure.mean, .low = factor * figure.low(), .high = factor * figure.high()};
}

Series measured(const Results& results, const std::string& name, Figure SizeResult::*member, double factor = 1) {
  Series series{.name = name, .style = Style::line_with_markers};
  for (const SizeResult& size : results.sizes)
    if ((size.*member).n > 0) series.points.push_back(point_of(size.ranks, size.*member, factor));
  return series;
}

/// The values that the cost model predicted. `figure` converts the speed of all ranks, in samples or tokens per second,
/// to the value that is drawn.
template <class Of>
Series predicted(const Results& results, Of figure) {
  Series series{.name = "predicted", .points = {}, .style = Style::markers};
  for (const scaling::StoredPrediction& p : results.predictions) {
    const auto of = [&](double seconds) { return figure(p, p.size.ranks * p.size.samples_per_rank / seconds); };
    series.points.push_back(
        {.x = static_cast<double>(p.size.ranks), .y = of(p.step_seconds()), .low = of(p.high), .high = of(p.low)});
  }
  return series;
}

/// A chart over the numbers of ranks, with those of the series that have points.
LineChart over_ranks(const Results& results, const char* title, const char* description, page::Axis y,
                     std::vector<Series> series) {
  std::erase_if(series, [](const Series& each) { return each.points.empty(); });
  return {.title = title,
          .description = description,
          .x = ranks_axis(results),
          .y = std::move(y),
          .series = std::move(series)};
}

LineChart speedup_chart(const Results& results) {
  const page::Axis ranks = ranks_axis(results);
  const double baseline = results.baseline().rate.mean, base_ranks = results.baseline().ranks;
  LineChart chart =
      over_ranks(results, "Speedup", "The throughput over that of the smallest size, with 95 % confidence intervals.",
                 {.label = "speedup", .is_logarithmic = ranks.is_logarithmic, .from_zero = !ranks.is_logarithmic},
                 {measured(results, "measured", &SizeResult::speedup),
                  predicted(results, [&](const Prediction&, double rate) { return rate / baseline; })});
  Series ideal{.name = "ideal", .style = Style::reference};
  for (const double n : ranks.ticks) ideal.points.push_back({.x = n, .y = n / base_ranks});
  if (ranks.is_logarithmic)
    for (const auto& point : ideal.points) chart.y.ticks.push_back(point.y);
  if (!chart.series.empty()) chart.series.push_back(std::move(ideal));
  return chart;
}

LineChart efficiency_chart(const Results& results) {
  const double per_rank = results.baseline().rate.mean / results.baseline().ranks;
  const auto of = [&](const Prediction& p, double rate) { return 100 * rate / p.size.ranks / per_rank; };
  return over_ranks(results, "Parallel efficiency", "The speedup divided by the ideal speedup.",
                    {.label = "efficiency (%)", .from_zero = true},
                    {measured(results, "measured", &SizeResult::efficiency, 100), predicted(results, of)});
}

LineChart throughput_chart(const Results& results) {
  const bool is_logarithmic = ranks_axis(results).is_logarithmic;
  return over_ranks(results, "Throughput", "Of all ranks together, with 95 % confidence intervals.",
                    {.label = results.unit + "/s", .is_logarithmic = is_logarithmic, .from_zero = !is_logarithmic},
                    {measured(results, "measured", &SizeResult::rate),
                     predicted(results, [](const Prediction&, double rate) { return rate; })});
}

StackedBars time_bars(const Results& results) {
  double greatest = 0;
  for (const SizeResult& size : results.sizes) greatest = std::fmax(greatest, size.step_seconds.mean);
  const Unit unit = unit_of_seconds(greatest);
  StackedBars chart{
      .title = "Where the time of a step goes",
      .description = "Means over ranks and repeats.",
      .x_label = x_label(results),
      .y_label = fmt::format("time ({})", unit.name),
      .parts = {{.name = "computing"}, {.name = "waiting for other ranks"}, {.name = "waiting for data"}}};
  for (const SizeResult& size : results.sizes) {
    if (size.n_averaged == 0) continue;
    const double others = size.exposed_communication_seconds.mean, data = size.data_wait_seconds.mean;
    chart.bars.push_back(size_text(size, results));
    chart.parts[0].values.push_back(std::max(0.0, size.step_seconds.mean - others - data) / unit.size);
    chart.parts[1].values.push_back(others / unit.size);
    chart.parts[2].values.push_back(data / unit.size);
  }
  return chart;
}

LineChart memory_chart(const Results& results) {
  double greatest = 0;
  for (const SizeResult& size : results.sizes) greatest = std::fmax(greatest, size.memory_peak.mean);
  const Unit unit = unit_of_bytes(greatest);
  return over_ranks(results, "Memory per rank", "Of the device, or of the process on CPUs.",
                    {.label = fmt::format("memory ({})", unit.name), .from_zero = true},
                    {measured(results, "peak", &SizeResult::memory_peak, 1 / unit.size),
                     measured(results, "average", &SizeResult::memory_mean, 1 / unit.size)});
}

/// The training loss of the first averaged case of each size.
LineChart loss_chart(const Results& results) {
  LineChart chart{.title = "Training loss",
                  .description = "Of single steps, in one case of each size.",
                  .x = {.label = "logged step", .is_whole = true},
                  .y = {.label = "loss"}};
  for (const SizeResult& size : results.sizes) {
    const auto found = std::ranges::find_if(results.cases, [&](const scaling::CaseResult& each) {
      return each.is_averaged && each.of.ranks == size.ranks && each.of.nodes == size.nodes;
    });
    if (found == results.cases.end()) continue;
    Series series{.name = counted(size.ranks, "rank"), .style = Style::line};
    const std::vector<double>& losses = found->measured->step_losses;
    for (std::size_t i = 0; i < losses.size(); ++i)
      series.points.push_back({.x = static_cast<double>(i + 1), .y = losses[i]});
    chart.series.push_back(std::move(series));
  }
  return chart;
}

std::vector<Row> key_figures(const Results& results) {
  const SizeResult& largest = results.sizes.back();
  std::vector<Row> rows{{"baseline", counted(results.baseline().ranks, "rank")},
                        {"largest size", counted(largest.ranks, "rank")}};
  const auto add = [&](const std::string& name, const Figure& figure, double factor, const std::string& unit) {
    if (figure.n > 0) rows.emplace_back(name, value_text(factor * figure.mean, 3) + unit);
  };
  add("speedup of the largest", largest.speedup, 1, "");
  add("efficiency of the largest", largest.efficiency, 100, " %");
  add("throughput of the largest", largest.rate, 1, " " + results.unit + "/s");
  if (results.model) rows.emplace_back("error of the cost model", value_text(100 * results.model->error, 2) + " %");
  return rows;
}

void add_machine(Page& page, const Results& results) {
  page.add_section("Machine");
  std::vector<Row> rows{{"build", results.study.build}, {"launcher", text_of(results.study.launcher)}};
  std::map<std::string, std::string> hosts;
  for (const scaling::CaseResult& each : results.cases) {
    if (!each.measured) continue;
    for (const scaling::Host& host : each.measured->hosts)
      hosts[host.name] = host.cores > 0 ? counted(host.cores, "core") : "cores unknown";
  }
  for (const auto& [name, cores] : hosts) rows.emplace_back(name, cores);
  page.add_table("", rows);
}

Page page_of_study(const Results& results) {
  Page page(
      "Scaling study",
      description_of(results.study) +
          (results.study.directory.empty() ? "." : fmt::format(". This page shows {}.", results.study.directory)));
  page.add_key_figures(key_figures(results));
  page.add_section("Speed");
  page.add_chart("speedup", speedup_chart(results));
  page.add_chart("efficiency", efficiency_chart(results));
  page.add_chart("throughput", throughput_chart(results));
  page.add_chart("time", time_bars(results));
  page.add_section("Memory and loss");
  page.add_chart("memory", memory_chart(results));
  page.add_chart("loss", loss_chart(results));
  page.add_section("Tables");
  page.add_text("", text_report(results));
  if (results.model) page.add_paragraph("DIR/model.json has the cost model for `lockstep plan --model`.");
  add_machine(page, results);
  return page;
}

/// The files that a report must not replace.
std::vector<std::string> files_of(const scaling::Study& study) {
  std::vector<std::string> files{study.file(), study.configuration_file(), study.directory + "/model.json",
                                 study.directory + "/predictions.json"};
  for (const scaling::Case& each : study.cases)
    for (const char* name : {"finished.json", "config.yaml", "output.txt", "job.txt", "hosts.txt"})
      files.push_back(study.directory_of(each) + "/" + name);
  return files;
}

bool is_run(const std::string& directory) {
  return !scaling::study_exists(directory) && is_there(directory + "/config.yaml") && is_there(directory + "/status");
}

std::string report_of(const std::string& format, const scaling::Results& results) {
  if (format == "markdown") return scaling::markdown_report(results);
  if (format == "csv") return scaling::csv_report(results);
  if (format == "json") return scaling::json_report(results);
  if (format == "latex") return scaling::latex_report(results);
  return scaling::text_report(results);
}

}  // namespace

void add_scaling_report(CLI::App& group, Run& run) {
  struct CommandLine {
    std::vector<std::string> directories;
    std::string format = "text", output, predicted, figures;
    std::vector<std::string> accepted;
  };
  auto options = std::make_shared<CommandLine>();
  CLI::App* command =
      group.add_subcommand("report", "Report speed, speedup, memory and waiting times of a study or of finished runs");
  add_required(*command, "DIR", options->directories,
               "The directory of a study, or those of finished runs, such as runs/1gpu runs/4gpus");
  add_choice(*command, "--format", options->format, {"text", "markdown", "csv", "json", "latex", "html"},
             "The format of the report");
  add_value(*command, "--output", "FILE", options->output,
            "Write the report to this file instead of printing it; html is written to DIR/report.html otherwise");
  add_value(*command, "--figures", "DIRECTORY", options->figures,
            "With html: also write each figure to this folder, as SVG and PNG");
  command
      ->add_option("--accept", options->accepted,
                   "Average cases although their warm-up was too short, they had neighbours on their nodes, they ran "
                   "with another "
                   "build, or they trained something else than the baseline")
      ->check(CLI::IsMember({"warm-up", "neighbours", "build", "settings"}))
      ->allow_extra_args(false);
  add_value(*command, "--predict", "LIST", options->predicted,
            "Fit the cost model, write it to DIR/model.json, and predict these numbers of ranks, or of nodes if "
            "the study has several, such as 16,32,64");
  set_run(*command, run, [options] {
    std::vector<scaling::Reason> accepted;
    for (const std::string& name : options->accepted) accepted.push_back(*scaling::reason_of(name));
    require(options->figures.empty() || options->format == "html", ErrorCode::usage, "--figures is for --format html");
    const bool are_runs = options->directories.size() > 1 || is_run(options->directories.front());
    std::vector<std::string> inputs;
    if (are_runs) {
      require(options->predicted.empty(), ErrorCode::usage, "--predict needs the directory of one study, not runs");
      require(options->format != "html" || !options->output.empty(), ErrorCode::usage,
              "--format html: name the page of several runs with --output");
      for (std::string& run : options->directories) run = run_argument(run);
      for (const std::string& run : options->directories)
        for (const char* file : {"config.yaml", "metrics.jsonl", "metrics.json", "status"})
          inputs.push_back(run + "/" + file);
    }
    scaling::Results results = are_runs ? scaling::read_runs(options->directories, accepted)
                                        : scaling::read_results(options->directories.front(), accepted);
    check_outputs({options->output}, are_runs ? inputs : files_of(results.study));
    require(options->predicted.empty() || !results.is_timed_as_a_whole(), ErrorCode::usage,
            "--predict needs a study with a number of steps: repeat it in another directory without --epochs");
    if (!options->predicted.empty()) scaling::predict(results, scaling::sizes_in(options->predicted, "--predict"));
    if (options->format == "html") {
      const std::string page = options->output.empty() ? results.study.directory + "/report.html" : options->output;
      print_text("{}", write_page(page_of_study(results), page, options->figures));
      return;
    }
    const std::string report = report_of(options->format, results);
    if (!options->output.empty())
      write_result(options->output, report);
    else if (options->format == "text")
      print_text("{}", report);
    else
      fmt::print("{}", report);
  });
}

}  // namespace lockstep::commands

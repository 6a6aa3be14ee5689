// The page of `lockstep report RUN`, from what the files of the run tell.
#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <ctime>
#include <functional>
#include <numeric>

#include "base/numbers.h"
#include "base/printable.h"
#include "commands/run_record.h"
#include "config/table.h"
#include "page/ticks.h"
#include "run/metrics_file.h"

namespace lockstep::commands {
namespace {

using Json = nlohmann::ordered_json;
using page::LineChart;
using page::Page;
using page::Row;
using page::Series;
using page::Style;
using page::value_text;

std::string time_text(double unix_seconds) {
  if (!std::isfinite(unix_seconds) || unix_seconds < 0 || unix_seconds > 1e11) return "-";
  const auto seconds = static_cast<std::time_t>(unix_seconds);
  std::tm parts{};
  ::gmtime_r(&seconds, &parts);
  return fmt::format("{}-{:02}-{:02} {:02}:{:02} UTC", parts.tm_year + 1900, parts.tm_mon + 1, parts.tm_mday,
                     parts.tm_hour, parts.tm_min);
}

std::string memory_text(double bytes) {
  const Unit unit = unit_of_bytes(bytes);
  return fmt::format("{} {}", value_text(bytes / unit.size), unit.name);
}

/// Of the finite values; NaN if there are none.
double median_of(std::vector<double> values) {
  std::erase_if(values, [](double v) { return !std::isfinite(v); });
  return values.empty() ? std::nan("") : median(std::move(values));
}

Series series_of(const EventTable& events, const std::string& key, const std::string& name, Style style,
                 double factor = 1) {
  Series series{.name = name, .style = style};
  const std::vector<double> steps = events.column("step"), values = events.column(key);
  for (std::size_t i = 0; i < values.size(); ++i) series.points.push_back({.x = steps[i], .y = factor * values[i]});
  return series;
}

void add_series(LineChart& chart, const EventTable& events, const std::string& key, const std::string& name,
                Style style, double factor = 1) {
  if (events.has(key)) chart.series.push_back(series_of(events, key, name, style, factor));
}

LineChart over_steps(std::string title, std::string description, page::Axis y) {
  title[0] = static_cast<char>(std::toupper(static_cast<unsigned char>(title[0])));
  return {.title = std::move(title),
          .description = std::move(description),
          .x = {.label = "step", .is_whole = true},
          .y = std::move(y)};
}

/// Whether the chart needs a logarithmic axis, because the first values would leave no room for the others.
bool spans_decades(const LineChart& chart) {
  double low = INFINITY, high = 0;
  for (const Series& series : chart.series)
    for (const page::Point& point : series.points) {
      if (!std::isfinite(point.y)) continue;
      if (point.y <= 0) return false;
      low = std::min(low, point.y);
      high = std::max(high, point.y);
    }
  return high > 30 * low;
}

/// A chart of a figure of steps and, if they have it, of evaluations and of those with the averaged weights.
LineChart chart_of(const RunRecord& run, const std::string& key, const std::string& description, bool from_zero) {
  const run::Curve curve = run::curve_of(key);
  LineChart chart = over_steps(std::string(curve.title), description, {.label = curve.label(), .from_zero = from_zero});
  add_series(chart, run.steps, key, "training", Style::line, curve.factor);
  add_series(chart, run.evaluations, key, "validation", Style::line_with_markers, curve.factor);
  add_series(chart, run.evaluations, "ema_" + key, "validation, average of the weights", Style::line_with_markers,
             curve.factor);
  chart.y.is_logarithmic = key != "learning_rate" && spans_decades(chart);
  return chart;
}

LineChart time_chart(const RunRecord& run) {
  const std::vector<double> seconds = run.steps.column("step_seconds");
  const Unit unit = unit_of_seconds(median_of(seconds));
  LineChart chart =
      over_steps("Time of a step", "Of logged steps. The waiting times are those of the rank that waits longest.",
                 {.label = fmt::format("time ({})", unit.name), .from_zero = true});
  for (const char* key : {"step_seconds", "data_wait_seconds", "exposed_communication_seconds"})
    add_series(chart, run.steps, key, std::string(run::curve_of(key).title), Style::line, 1 / unit.size);
  return chart;
}

/// "4", or "4, then 2 from step 17 on" if the run was resumed on another number of ranks.
std::string ranks_text(const EventTable& logged) {
  std::string text;
  const std::vector<double> steps = logged.column("step"), ranks = logged.column("ranks");
  for (std::size_t i = 0, last = 0; i < ranks.size(); ++i) {
    if (!std::isfinite(ranks[i]) || (!text.empty() && ranks[i] == ranks[last])) continue;
    text += text.empty() ? value_text(ranks[i]) : fmt::format(", then {} from step {} on", ranks[i], steps[i]);
    last = i;
  }
  return text;
}

/// The ranks that are drawn: all, or if there are many, those that the others wait for most. These wait least
/// themselves.
std::vector<std::size_t> drawn_ranks(const RunRecord& run) {
  constexpr std::size_t kMost = 64;
  std::vector<std::size_t> ranks(run.ranks.size());
  std::iota(ranks.begin(), ranks.end(), std::size_t{0});
  if (ranks.size() <= kMost) return ranks;
  std::ranges::stable_sort(ranks, {}, [&](std::size_t r) { return run.ranks[r].exposed_communication_seconds; });
  ranks.resize(kMost);
  std::ranges::sort(ranks);
  return ranks;
}

std::string selection_text(const RunRecord& run, std::size_t n_drawn) {
  if (n_drawn == run.ranks.size()) return "";
  return fmt::format(" The {} of {} ranks that wait least for others are shown.", n_drawn, run.ranks.size());
}

page::StackedBars rank_times(const RunRecord& run) {
  const std::vector<std::size_t> ranks = drawn_ranks(run);
  const double n = static_cast<double>(std::max<std::size_t>(1, run.n_rank_steps));
  const Unit unit = unit_of_seconds(run.rank_step_seconds / n);
  page::StackedBars chart{
      .title = "Where the time of a step goes",
      .description = "Means over the logged steps. A rank that the others wait for waits least itself." +
                     selection_text(run, ranks.size()),
      .x_label = "rank",
      .y_label = fmt::format("time ({})", unit.name),
      .parts = {{.name = "computing"}, {.name = "waiting for data"}, {.name = "waiting for other ranks"}}};
  for (const std::size_t rank : ranks) {
    const RankFigures& figures = run.ranks[rank];
    const double data = figures.data_wait_seconds, others = figures.exposed_communication_seconds;
    chart.bars.push_back(fmt::format("{}", rank));
    const double computing = std::max(0.0, run.rank_step_seconds - data - others);
    chart.parts[0].values.push_back(computing / n / unit.size);
    chart.parts[1].values.push_back(data / n / unit.size);
    chart.parts[2].values.push_back(others / n / unit.size);
  }
  return chart;
}

page::StackedBars rank_memory(const RunRecord& run) {
  const std::vector<std::size_t> ranks = drawn_ranks(run);
  double greatest = 0;
  for (const RankFigures& figures : run.ranks) greatest = std::fmax(greatest, figures.memory_bytes);
  const Unit unit = unit_of_bytes(greatest);
  page::StackedBars chart{
      .title = "Memory per rank",
      .description = "The peak of the device, or of the process on CPUs." + selection_text(run, ranks.size()),
      .x_label = "rank",
      .y_label = fmt::format("memory ({})", unit.name),
      .parts = {{.name = "memory"}}};
  for (const std::size_t rank : ranks) {
    chart.bars.push_back(fmt::format("{}", rank));
    chart.parts[0].values.push_back(run.ranks[rank].memory_bytes / unit.size);
  }
  return chart;
}

/// The best of all evaluations.
double best(const EventTable& evaluations, const std::string& key, bool is_greatest) {
  double found = std::nan("");
  for (const double value : evaluations.column(key))
    found = is_greatest ? std::fmax(found, value) : std::fmin(found, value);
  return found;
}

/// A run that was killed did not write its outcome, so "running" is doubtful if there are no events.
std::string status_text(const RunRecord& run) {
  constexpr double kLongSeconds = 600;
  const double age_seconds = std::difftime(std::time(nullptr), 0) - run.last_time_unix;
  if (run.status == "running" && age_seconds > kLongSeconds)
    return "running, but no event for " + duration_text(age_seconds);
  return run.status.empty() ? "unknown" : run.status;
}

std::vector<Row> key_figures(const RunRecord& run) {
  std::vector<Row> rows{{"status", status_text(run)}};
  const auto add = [&](const char* name, double value, const auto& text_of) {
    if (std::isfinite(value)) rows.emplace_back(name, text_of(value));
  };
  const auto plain = [](double value) { return value_text(value); };
  const auto percent = [](double value) { return value_text(100 * value, 3) + " %"; };
  const EventTable &steps = run.steps, &evaluations = run.evaluations;
  const auto middle = [&](const std::string& key) { return median_of(steps.column(key)); };
  const double step = std::fmax(std::fmax(steps.last("step"), run.epochs.last("step")), evaluations.last("step"));
  const double last_step = steps.last("last_step");
  add("steps", step, [&](double value) {
    return with_commas(value) + (last_step > value ? " of " + with_commas(last_step) : std::string());
  });
  add("epoch", steps.last("epoch"), plain);
  add("training loss, last", steps.last("loss"), plain);
  add("validation loss, best", best(evaluations, "loss", false), plain);
  add("accuracy, best", best(evaluations, "accuracy", true), percent);
  add("perplexity, best", best(evaluations, "perplexity", false), plain);
  add("ROUGE-L, best", best(evaluations, "rouge_l", true), plain);
  add("exact match, best", best(evaluations, "exact_match", true), percent);
  const std::string key = run.unit + "_per_second";
  const auto rate = [&](double value) { return value_text(value, 3) + " " + run.unit + "/s"; };
  add("speed, median", middle(key), rate);
  add("speed of what counts in the loss, median", middle("loss_" + key), rate);
  add("time of a step, median", middle("step_seconds"), duration_text);
  add("FLOPs of the model, median", middle("model_flops_rate"), flops_rate_text);
  add("MFU, median", middle("model_flops_utilization"), percent);
  add("memory, greatest of a rank", steps.last("memory_bytes"), memory_text);
  add("ranks", steps.last("ranks"), [&](double) { return ranks_text(steps); });
  add("duration", std::fmax(steps.last("run_seconds"), evaluations.last("run_seconds")), duration_text);
  if (const double skipped = steps.last("skipped_steps"); skipped > 0) add("skipped steps", skipped, with_commas);
  if (run.n_starts > 1) rows.emplace_back("starts", std::to_string(run.n_starts));
  return rows;
}

void add_charts(Page& page, const RunRecord& run) {
  page.add_section("Training");
  for (const char* key : {"loss", "accuracy", "perplexity", "rouge_l", "exact_match"})
    page.add_chart(key, chart_of(run, key, "Of single steps in training, and of whole evaluations.", false));
  page.add_chart("learning-rate",
                 chart_of(run, "learning_rate", "Of the optimizer, after warm-up and schedule.", true));
  page.add_chart("gradient-norm", chart_of(run, "gradient_norm", "Before clipping.", true));

  page.add_section("Speed and memory");
  const std::string key = run.unit + "_per_second";
  LineChart speed = over_steps("Throughput", "Of all ranks together. Evaluations and checkpoints do not count.",
                               {.label = run.unit + "/s", .from_zero = true});
  add_series(speed, run.steps, key, "logged steps", Style::line);
  add_series(speed, run.steps, "loss_" + key, "counted in the loss", Style::line);
  if (run.epochs.size() < 100) add_series(speed, run.epochs, key, "whole epochs", Style::markers);
  page.add_chart("throughput", std::move(speed));
  page.add_chart("time", time_chart(run));
  page.add_chart("time-per-rank", rank_times(run));
  page.add_chart("memory-per-rank", rank_memory(run));
  if (run.timeline)
    page.add_chart("timeline", *run.timeline, page::Width::whole);
  else
    page.add_paragraph(run.timeline_note);
}

/// The first sample, the last, and some that are evenly spaced between them.
std::vector<SampleOfStep> some_of(const std::vector<SampleOfStep>& samples) {
  constexpr std::size_t kMost = 8;
  if (samples.size() <= kMost) return samples;
  std::vector<SampleOfStep> out;
  for (std::size_t i = 0; i < kMost; ++i) out.push_back(samples[i * (samples.size() - 1) / (kMost - 1)]);
  return out;
}

void add_samples(Page& page, const RunRecord& run) {
  constexpr std::size_t kLongestPrompt = 400, kLongestText = 4000;  // bytes
  if (run.samples.empty()) return;
  page.add_section("Samples of text");
  page.add_paragraph("What the model made of the prompts of evaluation.generate, with its most probable tokens.");
  for (const auto& [prompt, samples] : run.samples) {
    std::vector<Row> rows;
    for (const SampleOfStep& sample : some_of(samples))
      rows.emplace_back(fmt::format("step {}", sample.step), printable(sample.text, kLongestText));
    page.add_table(printable(prompt, kLongestPrompt), rows);
  }
}

void add_tables(Page& page, const RunRecord& run) {
  const Config defaults;
  std::vector<Row> changed, all;
  for (const config::Key& key : config::table()) {
    if (key.is_hidden) continue;
    const Row row{key.name, key.get(run.config)};
    all.push_back(row);
    if (row.second != key.get(defaults)) changed.push_back(row);
  }
  page.add_section("Configuration");
  page.add_table("Keys that differ from their defaults", changed);
  page.add_table("All keys", all, page::Shown::folded);

  if (!run.machine.empty()) {
    page.add_section("Machine");
    constexpr std::size_t kMostRows = 24;  // if there are many ranks, only the first ones are shown
    std::vector<Row> rows = run.machine;
    if (rows.size() > kMostRows) {
      const auto is_rank = [](const Row& row) { return row.first.starts_with("rank "); };
      const auto others = std::stable_partition(rows.begin(), rows.end(), std::not_fn(is_rank));
      const std::size_t n_ranks = static_cast<std::size_t>(rows.end() - others);
      const std::size_t n_shown = std::min<std::size_t>(n_ranks, 8);
      rows.erase(others + static_cast<std::ptrdiff_t>(n_shown), rows.end());
      rows.emplace_back("further ranks", fmt::format("{}; log.txt lists them", n_ranks - n_shown));
    }
    page.add_table("", rows);
  }
  const Json versions = run.summary.value("versions", Json::object());
  std::vector<Row> rows;
  const auto add = [&](const std::string& name, const Json& value) {
    if (value.is_string()) rows.emplace_back(name, value.get<std::string>());
  };
  if (versions.is_object()) {
    for (const auto& [name, value] : versions.items()) {
      add(name, value);
      if (name == "libraries" && value.is_object())
        for (const auto& [library, version] : value.items()) add(library, version);
    }
  }
  if (!rows.empty()) {
    page.add_section("Versions");
    page.add_table("The program and its libraries", rows, page::Shown::folded);
  }
  if (!run.log_end.empty()) {
    page.add_section("Log");
    page.add_text("The last lines of log.txt", run.log_end);
  }
}

Json columns_of(const EventTable& events) {
  Json columns = Json::object();
  for (const std::string& key : events.keys()) columns[key] = events.column(key);
  return columns;
}

}  // namespace

Page page_of_run(const RunRecord& run) {
  std::string model = "";
  for (const auto& [what, value] : run.machine)
    if (what == "model") model = value + ". ";
  std::string files = fmt::format("This page shows the files of {}", run.path);
  if (std::isfinite(run.last_time_unix))
    files = fmt::format("{} to {}. {} as they were at the end of this time", time_text(run.first_time_unix),
                        time_text(run.last_time_unix), files);
  Page page(run.config.run.name, fmt::format("{}{}.", model, files));
  page.add_key_figures(key_figures(run));
  for (const std::string& note : run.notes) page.add_paragraph("Note: " + note);
  add_charts(page, run);
  add_samples(page, run);
  add_tables(page, run);
  return page;
}

/// Unknown figures are null.
Json json_of_run(const RunRecord& run, const std::string& page) {
  Json medians = Json::object(), best_of_evaluations = Json::object(), ranks = Json::array();
  for (const std::string& key : run.steps.keys())
    if (key.ends_with("_seconds") || key.ends_with("_per_second") || key.starts_with("model_flops_"))
      if (key != "run_seconds" && key != "training_seconds") medians[key] = median_of(run.steps.column(key));
  for (const auto& [measure, is_greater_better] : std::initializer_list<std::pair<std::string, bool>>{
           {"loss", false}, {"accuracy", true}, {"perplexity", false}, {"rouge_l", true}, {"exact_match", true}})
    for (const std::string& key : {measure, "ema_" + measure})
      if (run.evaluations.has(key)) best_of_evaluations[key] = best(run.evaluations, key, is_greater_better);
  const double n = static_cast<double>(std::max<std::size_t>(1, run.n_rank_steps));
  for (const RankFigures& figures : run.ranks)
    ranks.push_back({{"host", figures.host},
                     {"data_wait_seconds", figures.data_wait_seconds / n},
                     {"exposed_communication_seconds", figures.exposed_communication_seconds / n},
                     {"memory_bytes", figures.memory_bytes}});
  return {{"run", run.path},
          {"page", page},
          {"status", run.status},
          {"starts", run.n_starts},
          {"first_time_unix", run.first_time_unix},
          {"last_time_unix", run.last_time_unix},
          {"medians", medians},
          {"best", best_of_evaluations},
          {"per_rank", ranks},
          {"step", columns_of(run.steps)},
          {"evaluation", columns_of(run.evaluations)},
          {"epoch", columns_of(run.epochs)},
          {"notes", run.notes}};
}

}  // namespace lockstep::commands

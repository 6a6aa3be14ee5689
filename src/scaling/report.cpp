#include "scaling/report.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "base/number_text.h"

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
  for (const StoredPrediction& stored : results.predictions) {
    const Prediction& p = stored.prediction;
    const Figure measured = measured_by_now(results, p.size);
    table.rows.push_back({std::to_string(p.size.ranks), std::to_string(p.size.nodes), sharing_text(p.size),
                          number_text(p.step_seconds()),
                          fmt::format("{} to {}", number_text(p.low), number_text(p.high)), with_interval(measured),
                          measured.n == 0 ? "-" : fmt::format("{:+.1f}", 100 * (p.step_seconds() / measured.mean - 1)),
                          fmt::format("{}", fmt::join(stored.fitted_to_ranks, ", "))});
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

}  // namespace lockstep::scaling

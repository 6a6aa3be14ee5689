#include "scaling/results.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <initializer_list>
#include <map>
#include <numeric>
#include <set>
#include <utility>

#include "base/file.h"
#include "base/numbers.h"
#include "base/printable.h"
#include "config/parser.h"
#include "config/table.h"
#include "lockstep/error.h"
#include "scaling/case_files.h"
#include "scaling/predictions.h"

namespace lockstep::scaling {
namespace {

namespace fs = std::filesystem;

// Daemons use a few per cent of a core; half a core or more is a program (src/doctor/thresholds.h has the same limit).
constexpr double kBusyCores = 0.5;

std::span<const double> after_warmup(const std::vector<double>& values, const Study& study) {
  return std::span(values).subspan(std::min(values.size(), static_cast<std::size_t>(study.warmup_steps)));
}

double sum_of(std::span<const double> values) { return std::accumulate(values.begin(), values.end(), 0.0); }

std::vector<Rejection> rejections_of(const Study& study, const Measurement& m) {
  std::vector<Rejection> rejections;
  const auto steps = after_warmup(m.step_seconds, study);
  const bool has_warmup = study.steps > 0;  // whole trainings include their first steps
  if (has_warmup && std::ssize(steps) < kLeastMeasuredSteps)
    rejections.push_back({Reason::warmup, fmt::format("the warm-up left {} to measure, and at least {} are needed",
                                                      counted(steps.size(), "step"), kLeastMeasuredSteps)});
  else if (has_warmup && still_falls(steps))
    rejections.push_back({Reason::warmup, fmt::format("the warm-up of {} steps was too short: the steps after it still "
                                                      "became faster",
                                                      study.warmup_steps)});
  if (!m.other_jobs.empty())
    rejections.push_back(
        {Reason::neighbours, fmt::format("other jobs ran on its nodes: {}", fmt::join(m.other_jobs, ", "))});
  std::set<std::string> machines;
  std::vector<std::string> busy;
  for (const Host& host : m.hosts)
    if (host.busy >= kBusyCores && machines.insert(host.owner()).second)
      busy.push_back(fmt::format("{:.1f} cores of {}", host.busy, host.name));
  if (!busy.empty())
    rejections.push_back({Reason::neighbours, fmt::format("other programs kept {} busy", fmt::join(busy, ", "))});
  if (m.build != study.build)
    rejections.push_back({Reason::build, fmt::format("it ran with another build: {}", m.build)});
  return rejections;
}

void evaluate(const Study& study, const std::vector<Reason>& accepted, CaseResult& result) {
  if (!result.measured) return;
  const Measurement& m = *result.measured;
  result.rejections = rejections_of(study, m);
  if (!result.differences.empty()) result.rejections.push_back({Reason::settings, result.differences});
  result.is_averaged = std::ranges::all_of(result.rejections, [&](const Rejection& rejection) {
    return std::ranges::find(accepted, rejection.reason) != accepted.end();
  });
  const auto seconds = after_warmup(m.step_seconds, study);
  if (seconds.empty()) return;
  result.step_seconds = sum_of(seconds) / static_cast<double>(seconds.size());
  result.rate = sum_of(after_warmup(m.step_counts, study)) / sum_of(seconds);
  result.loss = figure_of(after_warmup(m.step_losses, study)).mean;
  result.accuracy = figure_of(after_warmup(m.step_accuracies, study)).mean;
  if (!std::isfinite(m.epoch_rate)) return;
  result.rate = m.epoch_rate;
  result.loss = m.epoch_loss;
  result.accuracy = m.epoch_accuracy;
}

SizeResult size_of(const std::vector<const CaseResult*>& cases) {
  SizeResult size{
      .ranks = cases.front()->of.ranks, .nodes = cases.front()->of.nodes, .n_cases = static_cast<int>(cases.size())};
  for (const CaseResult* each : cases) {
    size.n_averaged += each->is_averaged ? 1 : 0;
    size.n_rejected += each->measured && !each->is_averaged ? 1 : 0;
  }
  const auto over_cases = [&](auto value) {
    std::vector<double> values;
    for (const CaseResult* each : cases)
      if (each->is_averaged) values.push_back(value(*each));
    return figure_of(values);
  };
  const auto measured = [&](double Measurement::*member) {
    return over_cases([member](const CaseResult& each) { return (*each.measured).*member; });
  };
  size.step_seconds = over_cases([](const CaseResult& each) { return each.step_seconds; });
  size.rate = over_cases([](const CaseResult& each) { return each.rate; });
  size.loss = over_cases([](const CaseResult& each) { return each.loss; });
  size.accuracy = over_cases([](const CaseResult& each) { return each.accuracy; });
  size.training_seconds = measured(&Measurement::training_seconds);
  size.validation_loss = measured(&Measurement::validation_loss);
  size.validation_accuracy = measured(&Measurement::validation_accuracy);
  size.memory_peak = measured(&Measurement::memory_peak_bytes);
  size.memory_mean = measured(&Measurement::memory_mean_bytes);
  size.memory_mode = measured(&Measurement::memory_mode_bytes);
  size.utilisation = measured(&Measurement::utilisation);
  size.model_flops_rate = measured(&Measurement::model_flops_rate);
  size.model_flops_utilization = measured(&Measurement::model_flops_utilization);
  size.exposed_communication_seconds = measured(&Measurement::exposed_communication_seconds);
  size.data_wait_seconds = measured(&Measurement::data_wait_seconds);
  return size;
}

/// Remarks for each size that had fewer cores than ranks. Hosts on one machine count together.
std::vector<std::string> remarks_on_cores(const std::vector<CaseResult>& cases) {
  std::map<std::pair<int, int>, std::string> sentences;
  for (const CaseResult& each : cases) {
    if (!each.measured) continue;
    for (const auto& [name, machine] : machines_of(each.measured->hosts))
      if (machine.sharing() > 1)
        sentences[{each.of.ranks, each.of.nodes}] = fmt::format(
            "With {} ranks, {} of them{} shared {} of one machine: this size measures these cores, and not how the "
            "program scales.",
            each.of.ranks, machine.ranks, machine.hosts > 1 ? fmt::format(" on {} nodes", machine.hosts) : "",
            counted(machine.cores, "core"));
  }
  std::vector<std::string> remarks;
  for (auto& [size, sentence] : sentences) remarks.push_back(std::move(sentence));
  return remarks;
}

void add_remarks(Results& results) {
  results.remarks = remarks_on_cores(results.cases);
  const auto n_finished = std::ranges::count_if(results.cases, [](const auto& each) { return !!each.measured; });
  if (n_finished < std::ssize(results.cases))
    results.remarks.push_back(
        fmt::format("{} of {} cases are not finished: repeat the command of `lockstep scaling "
                    "run` to continue the study.",
                    std::ssize(results.cases) - n_finished, results.cases.size()));
  if (results.baseline().n_averaged == 0)
    results.remarks.push_back(fmt::format("There is no speedup, since no case of the baseline, {}, was averaged.",
                                          counted(results.baseline().ranks, "rank")));
  if (std::ranges::any_of(results.sizes, [](const SizeResult& size) {
        return size.n_averaged > 0 && size.n_averaged < kLeastForInterval;
      }))
    results.remarks.emplace_back(
        "A figure of one or two cases has no confidence interval: use --repeat 3 or more in a study that needs them.");
}

/// The measurement of a case that was not collected yet. No value if the run is unfinished or damaged: `lockstep
/// scaling run` would repeat the case.
std::optional<Measurement> not_collected(const Study& study, const Case& a_case) {
  try {
    return CaseFiles(study, a_case).measurement_of_run(study);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::study_damaged) throw;
    return std::nullopt;
  }
}

}  // namespace

std::string_view name_of(Reason reason) {
  constexpr std::string_view kNames[] = {"warm-up", "neighbours", "build", "settings"};
  return kNames[static_cast<std::size_t>(reason)];
}

std::optional<Reason> reason_of(std::string_view name) {
  for (const Reason reason : {Reason::warmup, Reason::neighbours, Reason::build, Reason::settings})
    if (name_of(reason) == name) return reason;
  return std::nullopt;
}

Results read_results(const std::string& directory, const std::vector<Reason>& accepted) {
  const Study study = read_study(directory);
  std::vector<CaseResult> cases;
  for (const Case& each : study.cases) {
    const CaseFiles files(study, each);
    cases.push_back({.of = each, .measured = files.measurement()});
    // The job may have ended after the last `lockstep scaling run`, which would have collected its result.
    if (!cases.back().measured && study.launcher == Launcher::slurm) cases.back().measured = not_collected(study, each);
  }
  Results results = results_of(study, std::move(cases), accepted);
  results.model = read_model(study);
  results.predictions = read_predictions(study);
  return results;
}

namespace {

bool begins_with_one_of(const std::string& key, std::initializer_list<std::string_view> beginnings) {
  return std::ranges::any_of(beginnings, [&](std::string_view beginning) { return key.starts_with(beginning); });
}

void add(std::string& list, const std::string& item) { list += (list.empty() ? "" : "; ") + item; }

/// How the configuration of a run differs from that of the baseline: "model.depth is 50, not 18". Runs with another
/// work cannot be compared. Other differences, such as that of the learning rate, are a remark.
void compare(const Config& base, const Config& config, CaseResult& result, std::vector<std::string>& remarks) {
  std::string others;
  for (const config::Key& key : config::table()) {
    const std::string was = key.get(base), is = key.get(config);
    if (was == is || begins_with_one_of(key.name, {"run.", "log.", "checkpoint.", "evaluation.", "trace", "device",
                                                   "train.global_batch", "train.batch_per_rank", "train.accumulate"}))
      continue;
    const bool is_work = begins_with_one_of(key.name, {"model.", "data.", "train.", "precision"}) &&
                         (key.effect != config::Effect::none || key.name == "train.max_steps");
    add(is_work ? result.differences : others, fmt::format("{} is {}, not {}", key.name, is, was));
  }
  if (!others.empty())
    remarks.push_back(fmt::format("{} has other settings than the baseline: {}.", result.of.name, others));
}

/// The batch must be that of the baseline on all ranks together, or on each rank, whichever more runs have. `usual`: of
/// the configuration, if both are equally frequent.
void compare_batches(Study& study, const CaseResult& base, Scaling usual, std::vector<CaseResult>& cases) {
  const auto per_rank = [](const CaseResult& each) { return each.measured->global_batch / each.of.ranks; };
  const auto is_same = [&](const CaseResult& each, Scaling scaling) {
    return scaling == Scaling::strong ? each.measured->global_batch == base.measured->global_batch
                                      : per_rank(each) == per_rank(base);
  };
  const auto n_same = [&](Scaling scaling) {
    return std::ranges::count_if(cases, [&](const CaseResult& each) { return is_same(each, scaling); });
  };
  const auto n_weak = n_same(Scaling::weak), n_strong = n_same(Scaling::strong);
  study.scaling = n_weak == n_strong ? usual : n_weak > n_strong ? Scaling::weak : Scaling::strong;
  study.batch = std::llround(study.scaling == Scaling::strong ? base.measured->global_batch : per_rank(base));
  for (CaseResult& each : cases)
    if (!is_same(each, study.scaling))
      add(each.differences,
          fmt::format("its batch is {:g} samples, {:g} per rank", each.measured->global_batch, per_rank(each)));
}

}  // namespace

Results read_runs(const std::vector<std::string>& runs, const std::vector<Reason>& accepted) {
  Study study;
  std::vector<CaseResult> cases;
  for (const std::string& run : runs) {
    require(std::ranges::count(runs, run) == 1, ErrorCode::usage, "{} is given twice", run);
    const std::string status = fs::exists(run + "/status") ? read_file(run + "/status") : "unknown";
    require(status.starts_with("done"), ErrorCode::usage,
            "{} is not a finished run: its status is {}; resume it, or leave it out", run,
            printable(status.substr(0, status.find('\n'))));
    const Measurement measured = measure(run, study);
    require(measured.ranks > 0, ErrorCode::usage, "{} was resumed on another number of ranks: leave it out", run);
    const int nodes = std::max<int>(1, static_cast<int>(measured.hosts.size()));
    cases.push_back({.of = {.name = run, .ranks = measured.ranks, .nodes = nodes}, .measured = measured});
    study.cases.push_back(cases.back().of);
  }
  const auto size = [](const CaseResult& each) { return std::pair(each.of.ranks, each.of.nodes); };
  const CaseResult base = *std::ranges::min_element(cases, {}, size);
  std::vector<std::string> remarks;
  const auto config_of = [](const CaseResult& each) { return config::parse({each.of.name + "/config.yaml"}); };
  for (CaseResult& each : cases) {
    compare(config_of(base), config_of(each), each, remarks);
    if (each.measured->has_gpus != base.measured->has_gpus) add(each.differences, "its device is of another kind");
  }
  compare_batches(study, base, scaling_of(config_of(base)), cases);
  study.build = base.measured->build;
  Results results = results_of(study, std::move(cases), accepted);
  results.remarks.insert(results.remarks.end(), remarks.begin(), remarks.end());
  return results;
}

Results results_of(const Study& study, std::vector<CaseResult> cases, const std::vector<Reason>& accepted) {
  Results results{.study = study, .unit = "", .cases = std::move(cases)};
  std::map<std::pair<int, int>, std::vector<const CaseResult*>> of_size;
  for (CaseResult& each : results.cases) {
    evaluate(study, accepted, each);
    if (each.measured) results.unit = each.measured->unit;
    if (each.measured) results.has_gpus = each.measured->has_gpus;
    of_size[{each.of.ranks, each.of.nodes}].push_back(&each);
  }
  for (const auto& [size, members] : of_size) results.sizes.push_back(size_of(members));
  for (SizeResult& size : results.sizes) {
    const SizeResult& base = results.baseline();
    size.rate_scaling = ratio_of(size.rate, base.rate);
    size.memory_scaling = ratio_of(size.memory_mean, base.memory_mean);
    size.speedup = results.is_timed_as_a_whole() ? inverted(ratio_of(size.training_seconds, base.training_seconds))
                                                 : size.rate_scaling;
    // The baseline is divided by itself, so its own ratios are exactly 1.
    for (Figure* own : {&size.rate_scaling, &size.memory_scaling, &size.speedup})
      if (&size == &base && own->n > 0) own->half_width = own->n < kLeastForInterval ? kUnknown : 0;
    size.efficiency = scaled(size.speedup, static_cast<double>(results.baseline().ranks) / size.ranks);
  }
  add_remarks(results);
  return results;
}

}  // namespace lockstep::scaling

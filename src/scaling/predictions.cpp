#include "scaling/predictions.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <utility>

#include "base/clock.h"
#include "base/file.h"
#include "base/json.h"
#include "config/parser.h"
#include "lockstep/error.h"

namespace lockstep::scaling {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::uint64_t kMaxBytes = std::uint64_t{1} << 24;

constexpr std::pair<const char*, double Prediction::*> kFigures[] = {
    {"compute_seconds", &Prediction::compute_seconds},
    {"exposed_communication_seconds", &Prediction::exposed_seconds},
    {"data_wait_seconds", &Prediction::data_seconds},
    {"interval_low", &Prediction::low},
    {"interval_high", &Prediction::high}};

std::string predictions_file(const Study& study) { return study.directory + "/predictions.json"; }

/// The machine with most ranks per core.
Machine fullest_machine(const std::vector<Host>& hosts) {
  Machine fullest;
  for (const auto& [name, machine] : machines_of(hosts))
    if (fullest.hosts == 0 || machine.sharing() > fullest.sharing()) fullest = machine;
  return fullest;
}

/// Samples or tokens per rank and step: the mean over the steps after the warm-up.
double samples_per_rank(const CaseResult& result) { return result.rate * result.step_seconds / result.of.ranks; }

/// Samples of a step of all ranks.
double global_batch(const Study& study, int ranks) {
  if (study.scaling == Scaling::strong) return static_cast<double>(study.batch);
  const int accumulate = config::parse({study.configuration_file()}).train.accumulate;
  return static_cast<double>(study.batch) * accumulate * ranks;
}

bool counts_nodes(const Study& study) {
  return std::ranges::any_of(study.cases, [](const Case& each) { return each.nodes > 1; });
}

std::string model_file(const Study& study) { return study.directory + "/model.json"; }

}  // namespace

nlohmann::ordered_json json_of(const StoredPrediction& stored) {
  Json object = stored.size;
  object["step_seconds"] = stored.step_seconds();
  for (const auto& [key, member] : kFigures) object[key] = stored.*member;
  object["time_unix"] = stored.time_unix;
  object["fitted_to_ranks"] = stored.fitted_to_ranks;
  return object;
}

CostModel fit_cost_model(const Results& results) {
  std::vector<CostPoint> points;
  Exchanged exchanged;
  double units_per_sample = 1, cores = 0;
  bool is_one_machine = false;
  for (const CaseResult& each : results.cases) {
    if (!each.is_averaged) continue;
    const Measurement& m = *each.measured;
    const Machine machine = fullest_machine(m.hosts);
    cores = std::max(cores, machine.cores);
    is_one_machine = is_one_machine || machine.hosts > 1;
    points.push_back({.size = {each.of.ranks, each.of.nodes, samples_per_rank(each), machine.sharing()},
                      .step_seconds = each.step_seconds,
                      .exposed_seconds = m.exposed_communication_seconds,
                      .data_seconds = m.data_wait_seconds,
                      .exchange_seconds = m.exchange_seconds});
    require(each.of.ranks == 1 || (m.exchanged_bytes > 0 && m.buckets > 0), ErrorCode::usage,
            "{} was measured by a program that did not record what the ranks exchange: remove the finished.json of its "
            "cases, and repeat the command of `lockstep scaling run`",
            each.of.name);
    if (each.of.ranks > 1) exchanged = {.bytes = m.exchanged_bytes, .buckets = static_cast<int>(m.buckets)};
    units_per_sample = points.back().size.samples_per_rank * each.of.ranks / global_batch(results.study, each.of.ranks);
  }
  CostModel model = fit_cost_model(points, exchanged, results.unit.empty() ? "samples" : results.unit);
  model.units_per_sample = units_per_sample;
  model.cores = cores;
  model.is_one_machine = is_one_machine;
  return model;
}

CostSize size_to_predict(const Results& results, const CostModel& model, int number) {
  const Study& study = results.study;
  const Case& largest = *std::ranges::max_element(study.cases, {}, &Case::ranks);
  const int ranks = counts_nodes(study) ? number * largest.ranks_per_node() : number;
  require(study.scaling == Scaling::weak || ranks <= study.batch, ErrorCode::usage,
          "--predict: a global batch of {} has too few samples for {} ranks, so that no study can run this size",
          study.batch, ranks);
  return model.size(ranks, counts_nodes(study) ? number : 1, global_batch(study, ranks));
}

void predict(Results& results, const std::vector<int>& numbers) {
  const CostModel model = fit_cost_model(results);
  std::vector<StoredPrediction> predictions = read_predictions(results.study);
  for (const int number : numbers) {
    const CostSize size = size_to_predict(results, model, number);
    const auto is_this = [&](const auto& each) { return each.ranks == size.ranks && each.nodes == size.nodes; };
    require(std::ranges::none_of(results.sizes, [&](const SizeResult& s) { return is_this(s) && s.n_averaged > 0; }),
            ErrorCode::usage, "--predict: {} {} have been measured; predict sizes that were not run", number,
            counts_nodes(results.study) ? "nodes" : "ranks");
    std::erase_if(predictions, [&](const StoredPrediction& each) { return is_this(each.size); });
    StoredPrediction stored{model.predict(size), unix_seconds()};
    for (const CostSize& fitted : model.fitted) stored.fitted_to_ranks.push_back(fitted.ranks);
    predictions.push_back(std::move(stored));
  }
  std::ranges::sort(predictions, {}, [](const StoredPrediction& each) { return each.size.ranks; });
  Json list = Json::array();
  for (const StoredPrediction& each : predictions) list.push_back(json_of(each));
  replace_file(model_file(results.study), json_of(model).dump(2) + "\n");
  replace_file(predictions_file(results.study), Json{{"format", 1}, {"predictions", list}}.dump(2) + "\n");
  results.model = model;
  results.predictions = std::move(predictions);
}

std::optional<CostModel> read_model(const Study& study) {
  const std::string path = model_file(study);
  if (!std::filesystem::exists(path)) return std::nullopt;
  return cost_model_in(read_file(path, kMaxBytes), path);
}

std::vector<StoredPrediction> read_predictions(const Study& study) {
  const std::string path = predictions_file(study);
  if (!std::filesystem::exists(path)) return {};
  const auto object = parse_json(read_file(path, kMaxBytes), path, ErrorCode::study_damaged);
  std::vector<StoredPrediction> predictions;
  try {
    for (const auto& each : object.at("predictions")) {
      StoredPrediction& stored = predictions.emplace_back();
      each.get_to(stored.size);
      for (const auto& [key, member] : kFigures) stored.*member = each.at(key);
      each.at("time_unix").get_to(stored.time_unix);
      each.at("fitted_to_ranks").get_to(stored.fitted_to_ranks);
    }
  } catch (const nlohmann::json::exception& error) {
    fail(ErrorCode::study_damaged, "{} is damaged: {}; remove the file, and predict again", path, error.what());
  }
  return predictions;
}

}  // namespace lockstep::scaling

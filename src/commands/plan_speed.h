// How fast the planned training is: what each part of the data path can sustain, according to a hardware file (the keys
// of `hardware`), and the time, according to the cost model that a scaling study has fitted (scaling/cost_model.h).
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "data/dataset.h"
#include "lockstep/config.h"
#include "lockstep/launches.h"
#include "scaling/cost_model.h"
#include "train/offloaded_optimizer.h"
#include "train/step_plan.h"

namespace lockstep::commands {

struct PartRate {
  std::string name;              // "storage", "cores", "PCIe", "GPU"
  std::string key;               // in --json
  std::optional<double> rate{};  // samples/s of a rank; no value: unknown, or there is no limit
  bool is_unknown = false;       // a key of `hardware` is missing
  double bytes_per_sample = 0;   // that pass through this part; 0: not counted
  std::string reason;            // of the rate, or why there is none
};

struct DataRates {
  std::string samples;  // what samples are called
  int ranks = 1;
  std::vector<PartRate> parts;

  /// The part with the lowest known rate; null if no rate is known.
  const PartRate* lowest() const;
};

/// `ranks_on_node`: the ranks that share the storage of a node. `has_device`: batches are copied to a GPU. No value: no
/// key of `hardware` is set.
std::optional<DataRates> data_rates(const Config& config, const data::Dataset& set, int ranks, int ranks_on_node,
                                    bool has_device);

std::string text_of(const DataRates& rates);
nlohmann::ordered_json json_of(const DataRates& rates);

struct PlannedCost {
  scaling::Prediction prediction{};  // of a step
  std::string machines{};            // "each node has 8 cores, as in the study"
  std::int64_t steps_per_epoch = 0, steps = 0;
  double efficiency = 0;  // samples per second and rank, relative to the smallest size of the study
  int baseline_ranks = 1;
  double error = 0;           // of the model, where it was fitted; a part of 1
  bool knows_network = true;  // false: several nodes are planned, and the study had cases on one node only

  double epoch_seconds() const { return prediction.step_seconds() * static_cast<double>(steps_per_epoch); }
  double seconds() const { return prediction.step_seconds() * static_cast<double>(steps); }
  double node_hours() const { return prediction.size.nodes * seconds() / 3600; }
};

/// `exchanged`: what a step of this plan exchanges; its model may differ from that of the study. Throws study_damaged
/// if `path` is not a cost model.
PlannedCost planned_cost(const std::string& path, int ranks, int nodes, std::int64_t global_batch,
                         const scaling::Exchanged& exchanged);

std::string text_of(const PlannedCost& cost);
nlohmann::ordered_json json_of(const PlannedCost& cost);

// What a step launches on a GPU that need not be here.

struct PlannedLaunch {
  LaunchList::Entry entry;
  int n = 1;  // equal ones
};

/// Of one step of a rank, without copies and communication. `backend`: a planning backend, with which `plan` was
/// made.
std::vector<PlannedLaunch> list_launches(train::StepPlan& plan, Backend& backend);

std::vector<PlannedLaunch> grouped(const std::vector<LaunchList::Entry>& entries);

/// `title`: "What a step launches".
std::string text_of(const std::vector<PlannedLaunch>& launches, const char* title);
/// "; floor 0.12 ms forward, 0.25 ms backward": the least time of a layer, if each of its launches moves its bytes, or
/// multiplies, at the device's rates. Empty if these are not known.
std::string floor_text(const std::vector<PlannedLaunch>& launches, const std::string& layer, const DeviceInfo& device);
nlohmann::ordered_json json_of(const std::vector<PlannedLaunch>& launches);

// What train.offload copies in a step, and whether the passes of the model hide it.

struct OffloadReport {
  train::OffloadedOptimizer::Traffic traffic{};
  // Seconds, by the keys of `hardware`, and the least that the passes take. No value: unknown
  std::optional<double> sums{}, weights{}, update{};
  std::optional<double> forward{}, backward{};  // of a micro-batch

  /// Seconds for which a pass waits, at most: it may take longer than the least. No value: unknown
  std::optional<double> exposed_in_backward() const;
  std::optional<double> exposed_in_forward() const;
};
/// `launches`: of a step on `device`, or empty.
OffloadReport report_offload(const train::StepPlan& plan, const std::vector<PlannedLaunch>& launches,
                             const DeviceInfo& device);
std::string text_of(const OffloadReport& report);
nlohmann::ordered_json json_of(const OffloadReport& report);

// What model.recompute saves and costs: counted from the shapes of planned graphs, and with the speed of the device if
// it is here.

/// The recomputation in one micro-batch.
struct RecomputedWork {
  int n_nodes = 0;         // that run forward twice
  double flops = 0;        // of matrix products: multiplications and additions
  double bytes = 0;        // that the nodes read and write: activations and weights
  double other_bytes = 0;  // of these, those of nodes other than matrix products: norms, activation functions
};

/// What recomputation saves and costs for one micro-batch of the largest size. The memory is that of training without
/// evaluations.
struct RecomputationReport {
  std::size_t activation_bytes = 0;       // with recomputation
  std::size_t kept_activation_bytes = 0;  // if everything were kept
  RecomputedWork added;
  double model_flops = 0;         // of the micro-batch, without what is recomputed (graph/graph.h)
  std::optional<double> seconds;  // added, as estimated from measured rates; no value: the device is not here

  /// Negative if the outputs of the recomputed nodes were not what took the memory.
  double saved_bytes() const {
    return static_cast<double>(kept_activation_bytes) - static_cast<double>(activation_bytes);
  }
};
/// `kept`: the same step with model.recompute=none. `device`: measures for a quarter of a second how fast it multiplies
/// matrices, and how fast it reads and writes memory; null: it is not here.
RecomputationReport report_recomputation(train::StepPlan& plan, const train::StepPlan& kept, Backend* device);

}  // namespace lockstep::commands

// The figures of a study, which all formats of its report show. A case with a reason in `rejections` is not averaged
// unless the user accepts that reason.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "scaling/cost_model.h"
#include "scaling/measurement.h"
#include "scaling/study.h"

namespace lockstep::scaling {

enum class Reason : std::uint8_t {
  warmup,      // it was too short: fewer than five steps after it, or steps still become faster (still_falls())
  neighbours,  // other Slurm jobs on its nodes, or other programs that kept half a core of a host busy
  build,       // it ran with another build than the program that began the study, or than the baseline
  settings,    // a finished run that trained something else than the baseline
};
/// "warm-up", "neighbours", "build", "settings".
std::string_view name_of(Reason reason);
std::optional<Reason> reason_of(std::string_view name);

struct Rejection {
  Reason reason = Reason::warmup;
  std::string text{};  // "other programs kept 1.9 cores of vm busy"
};

struct CaseResult {
  Case of{};
  std::optional<Measurement> measured{};  // empty: the case is not finished
  std::vector<Rejection> rejections{};
  bool is_averaged = false;
  std::string differences{};  // of a finished run from the baseline, "model.depth is 50, not 18"
  // After the warm-up: the mean time of a step, samples or tokens per second, and the means of loss and accuracy; or,
  // if there are whole epochs, the last three of the last epoch
  double step_seconds = kUnknown, rate = kUnknown, loss = kUnknown, accuracy = kUnknown;
};

/// The cases with the same numbers of ranks and nodes.
struct SizeResult {
  int ranks = 1, nodes = 1;
  int n_cases = 0, n_averaged = 0, n_rejected = 0;  // n_averaged + n_rejected: those that are finished
  // Over the averaged cases. memory in bytes, of GPU 0 or rank 0; utilisations are parts of 1.
  Figure step_seconds{}, training_seconds{}, rate{}, loss{}, accuracy{}, validation_loss{}, validation_accuracy{},
      memory_peak{}, memory_mean{}, memory_mode{}, utilisation{}, model_flops_rate{}, model_flops_utilization{},
      exposed_communication_seconds{}, data_wait_seconds{};
  /// rate / rate of the baseline, and the same of memory_mean.
  Figure rate_scaling{}, memory_scaling{};
  /// Of a study with steps: rate_scaling. With a strong study, where the steps are equal, it is also the ratio of the
  /// times of a step. Of whole trainings: training_seconds of the baseline / training_seconds. efficiency: speedup
  /// divided by ranks / ranks of the baseline.
  Figure speedup{}, efficiency{};
};

struct Results {
  Study study{};
  std::string unit{};                           // "samples" or "tokens"; empty: no case is finished
  bool has_gpus = false;                        // otherwise the ranks compute on CPUs
  std::vector<CaseResult> cases{};              // in the order in which they ran
  std::vector<SizeResult> sizes{};              // in ascending order; the first is the baseline
  std::optional<CostModel> model{};             // of DIR/model.json, if there is one
  std::vector<StoredPrediction> predictions{};  // of DIR/predictions.json, in ascending order
  std::vector<std::string> remarks{};           // what limits the figures, as whole sentences

  const SizeResult& baseline() const { return sizes.front(); }
  bool is_timed_as_a_whole() const { return study.steps == 0; }
};

/// Reads the study and its cases. `accepted`: reasons for which a case is averaged nevertheless.
Results read_results(const std::string& directory, const std::vector<Reason>& accepted);
/// Compares finished runs by their directories. The first run of the smallest size is the baseline: others must have
/// trained the same model on the same data, with the same batch or the same batch per rank. Throws usage if a run is
/// not done, or if its number of ranks has changed.
Results read_runs(const std::vector<std::string>& runs, const std::vector<Reason>& accepted);
/// The same without reading, from cases with their measurements.
Results results_of(const Study& study, std::vector<CaseResult> cases, const std::vector<Reason>& accepted);

}  // namespace lockstep::scaling

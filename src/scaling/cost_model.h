// What a training step takes on any number of ranks, as a sum of terms that are fitted to the sizes of a study:
//
//   compute    sharing x (fixed + per sample x samples of a rank)
//   exchange   per bucket and hop a latency, and its bytes over a bandwidth; between nodes and inside each node
//   exposed    what of the exchange is not hidden behind the compute, at least the last bucket, and the wait for the
//              slowest rank, which is expected to grow with sqrt(2 ln ranks), like the maximum of that many normal
//              variables
//   data       the wait for data
//
// A ring or a direct exchange of N participants sends each byte 2 (N-1)/N times per participant, in 2 (N-1) hops. The
// time of a step is compute + exposed + data. All times are in seconds, and samples can also be tokens.
#pragma once

#include <algorithm>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

namespace lockstep::scaling {

/// A number of ranks, and what the model needs to know about it.
struct CostSize {
  int ranks = 1, nodes = 1;
  double samples_per_rank = 0;  // of a step
  double sharing = 1;           // ranks per core of a machine, if it has fewer cores than ranks; otherwise 1
};
template <typename Json>
void to_json(Json& json, const CostSize& size) {
  json = {{"ranks", size.ranks},
          {"nodes", size.nodes},
          {"samples_per_rank", size.samples_per_rank},
          {"sharing", size.sharing}};
}
template <typename Json>
void from_json(const Json& json, CostSize& size) {
  size = {json.at("ranks"), json.at("nodes"), json.at("samples_per_rank"), json.at("sharing")};
}

/// What one case has measured: means over its steps.
struct CostPoint {
  CostSize size;
  double step_seconds = 0, exposed_seconds = 0, data_seconds = 0;
  double exchange_seconds = 0;  // NaN: not measured
};

/// What the ranks of a step exchange.
struct Exchanged {
  double bytes = 0;
  int buckets = 1;
};

struct Prediction {
  CostSize size{};
  double compute_seconds = 0, exposed_seconds = 0, data_seconds = 0;
  double low = 0, high = 0;  // the step's time is in [low, high] with about 95 % probability, if the model holds
  double step_seconds() const { return compute_seconds + exposed_seconds + data_seconds; }
};

/// A prediction as it was written, before the size was run.
struct StoredPrediction : Prediction {
  double time_unix = 0;
  std::vector<int> fitted_to_ranks{};
};

struct CostModel {
  double fixed_seconds = 0, sample_seconds = 0;        // compute of a rank that shares no core
  double node_hop_seconds = 0, node_byte_seconds = 0;  // between nodes
  double rank_hop_seconds = 0, rank_byte_seconds = 0;  // inside a node
  double hidden_part = 0;                              // part of the compute behind which exchanges are hidden
  double straggler_part = 0;                           // relative to the compute; 0: all ranks are equally fast
  double data_seconds = 0;
  double error = 0;   // root of the mean square of the relative errors of step_seconds, at the fitted cases
  double spread = 0;  // relative standard deviation of predictions for the largest fitted size, over resampled repeats
  bool has_exchange_times = false;  // false: latency and bandwidth were fitted to the exposed communication
  Exchanged exchanged{};
  std::string unit = "samples";
  double units_per_sample = 1;     // tokens per sample of a language model; otherwise 1
  double cores = 0;                // of a machine of the study; 0: unknown
  bool is_one_machine = false;     // the nodes of the study shared its cores, as containers do
  std::vector<CostSize> fitted{};  // each size once, in ascending order

  /// A size with this global batch, on machines like those of the study.
  CostSize size(int ranks, int nodes, double global_batch) const;
  double exchange_seconds(const CostSize& size) const;
  Prediction predict(const CostSize& size) const;
};

/// Fits the model to the cases. `exchanged`: what a step exchanges. Throws usage, which says what to run, if there are
/// fewer than two numbers of ranks.
CostModel fit_cost_model(std::span<const CostPoint> points, const Exchanged& exchanged, const std::string& unit);

/// The x >= 0 that minimises |A x - b|^2 for a few columns: tries all sets of columns that may be positive. `rows`: A,
/// row by row.
std::vector<double> nonnegative_least_squares(std::span<const double> rows, std::span<const double> right,
                                              std::size_t n_columns);

nlohmann::ordered_json json_of(const CostModel& model);
/// The opposite. Throws study_damaged, naming `path`.
CostModel cost_model_in(const std::string& text, const std::string& path);

/// "step = compute + exposed + data ..." with the fitted values and their error, for people.
std::string text_of(const CostModel& model);
/// On which machines predictions are based: "all nodes share the 2 cores of one machine, as in the study".
std::string machines_text(const CostModel& model);
/// "8", "at most 1"
std::string sharing_text(const CostSize& size);

}  // namespace lockstep::scaling

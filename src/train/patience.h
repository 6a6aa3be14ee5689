// Early stopping (evaluation.patience): a run ends when this many evaluations in a row were not better than the best
// one.
//
// A checkpoint records the state, so that a resumed run continues to count. Only the evaluations at the intervals of
// the configuration count. They are after the same steps however often a run is interrupted, so the state depends only
// on the step.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>

namespace lockstep::train {

class Patience {
 public:
  /// `limit` 0: unlimited.
  explicit Patience(int limit = 0) : limit_(limit) {}

  /// An evaluation after `step` has finished. Greater is better. NaN is not an improvement.
  void add(std::int64_t step, double quality);
  bool is_exhausted() const { return limit_ > 0 && n_without_improvement_ >= limit_; }
  /// "the last 3 evaluations were not better than that after step 24 (evaluation.patience)".
  std::string reason() const;

  /// Null if the limit is 0: then nothing is recorded.
  nlohmann::json state() const;
  void restore(const nlohmann::json& state);

 private:
  int limit_;
  bool has_best_ = false;
  double best_quality_ = 0;
  std::int64_t best_step_ = 0;
  int n_without_improvement_ = 0;
};

}  // namespace lockstep::train

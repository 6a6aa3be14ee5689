// The inputs, the state and the report of a step, as plain structs that are copied between host, device and ranks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "lockstep/loss_scale.h"
#include "lockstep/op.h"

namespace lockstep::train {

/// The flags that ranks exchange in every step. A rank writes its own flags (0 or 1) before the step; all ranks read
/// the same sums, the number of ranks that set each flag, with the step's result.
struct StepFlags {
  double stop_requests = 0;  // a signal asked this rank to stop
  double save_due = 0;       // a checkpoint is due by the clock, which only rank 0 checks
  double saver_done = 0;     // the background writer has finished its phase
  double report_due = 0;     // a report on the data is due by the clock, which only rank 0 checks
};

/// The sums as numbers, in the order in which checkpoints store them. The weight is included only if classes have
/// weights.
inline std::vector<double> numbers_of(const LossSums& sums) {
  std::vector<double> numbers{sums.loss, sums.correct, sums.count};
  if (sums.weight != sums.count) numbers.push_back(sums.weight);
  return numbers;
}
/// Zero if `numbers` are not those of numbers_of().
inline LossSums loss_sums(std::span<const double> numbers) {
  if (numbers.size() != 3 && numbers.size() != 4) return {};
  return {.loss = numbers[0], .correct = numbers[1], .count = numbers[2], .weight = numbers.back()};
}

/// What is summed over ranks once per step besides gradients: in exchange memory, by one all-reduce of doubles.
struct StepSums {
  LossSums loss;
  StepFlags flags;
  static constexpr std::size_t kElements = (sizeof(LossSums) + sizeof(StepFlags)) / sizeof(double);
};
static_assert(sizeof(StepSums) == StepSums::kElements * sizeof(double));

/// The result of a step. It is put together in the backend's memory, and copied to the host as one.
struct StepReport {
  StepSums sums;   // over ranks
  LossSums local;  // this rank's
  double gradient_norm = 0;
  std::uint32_t is_applied = 0;  // 0: skipped, on all ranks alike; weights, optimizer and statistics are as before
  LossScale loss_scale, next_loss_scale;  // in force in this step, and in the one after it
};

/// The small state that steps keep in the backend's memory, at the head of the optimizer's arena.
struct StepState {
  StepScalars scalars;  // new in each step
  LossScale loss_scale;
  StepReport report;
  std::uint64_t hash = 0;
};

}  // namespace lockstep::train

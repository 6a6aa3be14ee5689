// Moving averages of batch statistics and of weights (lockstep/ops/moving_average.h).
#include <algorithm>
#include <memory>

#include "kernels/cpu/base/context.h"
#include "kernels/cpu/base/parallel.h"
#include "lockstep/ops/moving_average.h"

namespace lockstep::cpu {
namespace {

class CpuMovingAverage final : public MovingAverage {
 public:
  CpuMovingAverage(const MovingAverageDescription& d, const CpuContext& context)
      : description_(d), parts_(part_count(context, static_cast<std::int64_t>(d.n_elements * 3 * sizeof(float)))) {}

  OpMemoryRequirements memory_requirements() const override { return {}; }
  std::string describe() const override { return "own kernel"; }

  void run_apply(const Apply& args, const OpMemory&, Stream&) override {
    if (description_.momentum && args.scalars->is_applied == 0) return;
    const float momentum = description_.momentum.value_or(args.scalars->average_momentum);
    const bool is_average = !description_.momentum;
    if (is_average && momentum == 0) return;
    run_parts(parts_, [&](int part) {
      const Range range = part_of(static_cast<std::int64_t>(description_.n_elements), part, parts_);
      if (is_average && momentum == 1)
        std::copy(args.batch + range.begin, args.batch + range.end, args.running + range.begin);
      else
        for (std::int64_t i = range.begin; i < range.end; ++i)
          args.running[i] += momentum * (args.batch[i] - args.running[i]);
    });
  }

 private:
  MovingAverageDescription description_;
  int parts_;
};

}  // namespace

std::unique_ptr<MovingAverage> make_moving_average(const MovingAverageDescription& d, const CpuContext& context) {
  return std::make_unique<CpuMovingAverage>(d, context);
}

}  // namespace lockstep::cpu

// Moving averages of batch statistics and of weights (lockstep/ops/moving_average.h).
#include <algorithm>
#include <memory>

#include "kernels/cpu/base/parallel.h"
#include "lockstep/ops/moving_average.h"

namespace lockstep::cpu {
namespace {

class CpuMovingAverage final : public CpuOp<MovingAverageDescription> {
 public:
  CpuMovingAverage(const MovingAverageDescription& d, const CpuContext& context)
      : PlannedOp(d, context),
        parts_(part_count(context, static_cast<std::int64_t>(d.n_elements * 3 * sizeof(float)))) {}

  std::string describe() const override { return "own kernel"; }

  void run_apply(const Apply& args, const OpMemory&, Stream&) override {
    if (d_.momentum && args.scalars->is_applied == 0) return;
    const float momentum = d_.momentum.value_or(args.scalars->average_momentum);
    const bool is_average = !d_.momentum;
    if (is_average && momentum == 0) return;
    run_ranges(parts_, static_cast<std::int64_t>(d_.n_elements), [&](Range range) {
      if (is_average && momentum == 1)
        std::copy(args.batch + range.begin, args.batch + range.end, args.running + range.begin);
      else
        for (std::int64_t i = range.begin; i < range.end; ++i)
          args.running[i] += momentum * (args.batch[i] - args.running[i]);
    });
  }

 private:
  int parts_;
};

}  // namespace

std::unique_ptr<MovingAverage> make_moving_average(const MovingAverageDescription& d, const CpuContext& context) {
  return std::make_unique<CpuMovingAverage>(d, context);
}

}  // namespace lockstep::cpu

// Running statistics, updated once per step (lockstep/ops/moving_average.h).
#include <memory>

#include "kernels/cpu/base/context.h"
#include "lockstep/ops/moving_average.h"

namespace lockstep::cpu {
namespace {

class CpuMovingAverage final : public MovingAverage {
 public:
  explicit CpuMovingAverage(const MovingAverageDescription& d) : description_(d) {}

  OpNeeds needs() const override { return {}; }
  std::string describe() const override { return "own kernel"; }

  void run_apply(const Apply& args, const OpMemory&, Stream&) override {
    if (args.scalars->is_applied == 0) return;
    const float momentum = description_.momentum;
    for (std::size_t i = 0; i < description_.n_elements; ++i)
      args.running[i] += momentum * (args.batch[i] - args.running[i]);
  }

 private:
  MovingAverageDescription description_;
};

}  // namespace

std::unique_ptr<MovingAverage> make_moving_average(const MovingAverageDescription& d, const CpuContext&) {
  return std::make_unique<CpuMovingAverage>(d);
}

}  // namespace lockstep::cpu

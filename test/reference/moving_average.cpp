// Moving averages. Formula: lockstep/ops/moving_average.h.
#include "lockstep/ops/moving_average.h"
#include "test/reference/ops.h"

namespace lockstep::reference {
namespace {

class ReferenceMovingAverage final : public MovingAverage {
 public:
  explicit ReferenceMovingAverage(const MovingAverageDescription& d) : d_(d) {}
  std::string describe() const override { return "reference: all fused"; }
  void run_apply(const Apply& args, const OpMemory&, Stream&) override {
    if (d_.momentum ? args.scalars->is_applied == 0 : args.scalars->average_momentum == 0) return;
    const double momentum = d_.momentum.value_or(args.scalars->average_momentum);
    for (std::size_t i = 0; i < d_.n_elements; ++i) {
      const double running = args.running[i];
      args.running[i] =
          static_cast<float>(momentum == 1 ? args.batch[i] : running + momentum * (args.batch[i] - running));
    }
  }

 private:
  MovingAverageDescription d_;
};

}  // namespace

std::unique_ptr<MovingAverage> make_moving_average(const MovingAverageDescription& description, const Context&) {
  return std::make_unique<ReferenceMovingAverage>(description);
}

}  // namespace lockstep::reference

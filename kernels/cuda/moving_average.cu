// Moving averages on the device. Contract: lockstep/ops/moving_average.h.
#include <memory>

#include "kernels/cuda/base/context.h"
#include "kernels/cuda/base/launch.h"
#include "lockstep/ops/moving_average.h"

namespace lockstep::cuda {
namespace {

enum class Momentum { fixed, of_step };

template <Momentum kMomentum>
__global__ void move_average(float* running, const float* batch, std::size_t n_elements, float fixed,
                             const StepScalars* scalars) {
  constexpr bool kIsOfStep = kMomentum == Momentum::of_step;
  const float momentum = kIsOfStep ? scalars->average_momentum : fixed;
  if (kIsOfStep ? momentum == 0 : scalars->is_applied == 0) return;
  const std::size_t stride = std::size_t{gridDim.x} * blockDim.x;
  for (std::size_t i = std::size_t{blockIdx.x} * blockDim.x + threadIdx.x; i < n_elements; i += stride)
    running[i] = kIsOfStep && momentum == 1 ? batch[i] : running[i] + momentum * (batch[i] - running[i]);
}

class CudaMovingAverage final : public CudaOp<MovingAverageDescription> {
 public:
  using PlannedOp::PlannedOp;

  std::string describe() const override { return "own kernel"; }

  void run_apply(const Apply& args, const OpMemory&, Stream& stream) override {
    const unsigned limit = context_.blocks(4);
    launch(d_.momentum ? move_average<Momentum::fixed> : move_average<Momentum::of_step>,
           {.blocks = blocks_for(d_.n_elements, 256, limit),
            .work = {.kind = "packs", .bytes = 3 * static_cast<double>(d_.n_elements * sizeof(float))}},
           stream, args.running, args.batch, d_.n_elements, d_.momentum.value_or(0), args.scalars);
  }
};

}  // namespace

std::unique_ptr<MovingAverage> make_moving_average(const MovingAverageDescription& d, const CudaContext& context) {
  return std::make_unique<CudaMovingAverage>(d, context);
}

}  // namespace lockstep::cuda

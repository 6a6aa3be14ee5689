// Activation functions (lockstep/ops/activation.h): one pass over memory in fp32 registers, x read and y written, or x
// and dy read and dx written. Elements are divided among threads.
#include "kernels/cpu/activation.h"

#include <memory>

#include "kernels/cpu/base/parallel.h"
#include "kernels/cpu/base/simd.h"
#include "lockstep/ops/activation.h"

#define LOCKSTEP_KERNELS "kernels/cpu/activation_kernels.h"
#include "kernels/cpu/base/each_isa.h"

namespace lockstep::cpu {
namespace {

class CpuActivation final : public CpuOp<ActivationDescription> {
 public:
  using PlannedOp::PlannedOp;

  std::string describe() const override { return fmt::format("{}: own kernel, one pass", name(d_.function)); }

  void run_forward(const Forward& args, const OpMemory&, Stream&) override {
    run_activation({.function = d_.function, .dtype = d_.dtype, .n = d_.n_elements, .x = args.x, .out = args.y},
                   context_);
  }
  void run_backward(const Backward& args, const OpMemory&, Stream&) override {
    if (args.dx_mode == GradientMode::skip) return;
    run_activation({.function = d_.function,
                    .dtype = d_.dtype,
                    .n = d_.n_elements,
                    .x = args.x,
                    .dy = args.dy,
                    .out = args.dx,
                    .accumulate = args.dx_mode == GradientMode::accumulate},
                   context_);
  }
};

}  // namespace

void run_activation(const ActivationPass& pass, const CpuContext& context) {
  const int parts = part_count(context, 2 * pass.n * static_cast<std::int64_t>(size_bytes(pass.dtype)));
  with_elements(pass.dtype, [&]<typename E>(E) {
    run_ranges(parts, pass.n, [&](Range range) { LOCKSTEP_DISPATCH(activation_pass<E>)(pass, range); });
  });
}

std::unique_ptr<ActivationOp> make_activation(const ActivationDescription& d, const CpuContext& context) {
  require_float_or_bf16(d.dtype, "an activation");
  return std::make_unique<CpuActivation>(d, context);
}

}  // namespace lockstep::cpu

// Activation functions (lockstep/ops/activation.h): one pass over memory in fp32 registers, x read and y written, or x
// and dy read and dx written. Elements are divided among threads.
#include "kernels/cpu/activation.h"

#include <memory>

#include "kernels/cpu/base/parallel.h"
#include "kernels/cpu/base/simd.h"
#include "lockstep/ops/activation.h"

namespace lockstep::cpu {

template <typename E>
struct ActivationTask {
  ActivationFunction function = ActivationFunction::none;
  const E* x = nullptr;
  const E* dy = nullptr;  // null in forward
  E* out = nullptr;
  bool accumulate = false;
};

}  // namespace lockstep::cpu

#define LOCKSTEP_KERNELS "kernels/cpu/activation_kernels.h"
#include "kernels/cpu/base/each_isa.h"

namespace lockstep::cpu {
namespace {

void run(ActivationFunction function, DType dtype, const void* x, const void* dy, void* out, bool accumulate,
         std::int64_t n, const CpuContext& context) {
  const int parts = part_count(context, 2 * n * static_cast<std::int64_t>(size_bytes(dtype)));
  with_elements(dtype, [&](auto element) {
    using E = decltype(element);
    const ActivationTask<E> task{.function = function,
                                 .x = static_cast<const E*>(x),
                                 .dy = static_cast<const E*>(dy),
                                 .out = static_cast<E*>(out),
                                 .accumulate = accumulate};
    run_parts(parts, [&](int part) { LOCKSTEP_DISPATCH(activation_pass<E>)(task, part_of(n, part, parts)); });
  });
}

class CpuActivation final : public Activation {
 public:
  CpuActivation(const ActivationDescription& d, const CpuContext& context) : d_(d), context_(context) {}

  OpMemoryRequirements memory_requirements() const override { return {}; }
  std::string describe() const override { return fmt::format("{}: own kernel, one pass", name(d_.function)); }

  void run_forward(const Forward& args, const OpMemory&, Stream&) override {
    activate(d_.function, d_.dtype, args.x, args.y, d_.n_elements, context_);
  }
  void run_backward(const Backward& args, const OpMemory&, Stream&) override {
    if (args.dx_mode == GradientMode::skip) return;
    activation_gradient(d_.function, d_.dtype, args.x, args.dy, args.dx, args.dx_mode == GradientMode::accumulate,
                        d_.n_elements, context_);
  }

 private:
  ActivationDescription d_;
  CpuContext context_;
};

}  // namespace

void activate(ActivationFunction function, DType dtype, const void* x, void* y, std::int64_t n,
              const CpuContext& context) {
  run(function, dtype, x, nullptr, y, false, n, context);
}

void activation_gradient(ActivationFunction function, DType dtype, const void* x, const void* dy, void* dx,
                         bool accumulate, std::int64_t n, const CpuContext& context) {
  run(function, dtype, x, dy, dx, accumulate, n, context);
}

std::unique_ptr<Activation> make_activation(const ActivationDescription& d, const CpuContext& context) {
  require(d.n_elements > 0 && d.function != ActivationFunction::none, ErrorCode::op_description,
          "an activation of {} elements by {}: both a function and elements are needed", d.n_elements,
          name(d.function));
  require_float_or_bf16(d.dtype, "an activation");
  return std::make_unique<CpuActivation>(d, context);
}

}  // namespace lockstep::cpu

// Activation functions (lockstep/ops/activation.h), computed in fp32, 16 bytes per thread at a time.
// Bytes moved: x is read and y written; backward reads x and dy and writes dx, and also reads dx if it accumulates. No
// kernel can move less.
#include "kernels/cuda/activation.h"

#include <memory>

#include "kernels/cuda/activation_functions.h"
#include "kernels/cuda/base/items.h"
#include "lockstep/ops/activation.h"

namespace lockstep::cuda {
namespace {

/// If `dy` is null, out = f(x).
template <typename F, typename T>
__global__ void activation_pass(const T* x, const T* dy, T* out, bool accumulate, PackWalk<T> walk) {
  walk.for_each([&](auto width, std::int64_t i) {
    const Pack<T> in = load_values<width>(x + i);
    Pack<T> gradient{}, results{};
    if (dy != nullptr) gradient = load_values<width>(dy + i);
    if (accumulate) results = load_values<width>(out + i);
#pragma unroll
    for (int j = 0; j < width; ++j) {
      const float value = to_float(in.values[j]);
      const float result = dy == nullptr ? F::value(value) : to_float(gradient.values[j]) * F::derivative(value);
      results.values[j] = from_float<T>(accumulate ? to_float(results.values[j]) + result : result);
    }
    store_values<width>(out + i, results);
  });
}

class CudaActivation final : public CudaOp<ActivationDescription> {
 public:
  using PlannedOp::PlannedOp;

  std::string describe() const override { return fmt::format("{}: own kernel, one pass", name(d_.function)); }

  void run_forward(const Forward& args, const OpMemory&, Stream& stream) override {
    run_activation({.function = d_.function, .dtype = d_.dtype, .n = d_.n_elements, .x = args.x, .out = args.y},
                   context_, stream);
  }
  void run_backward(const Backward& args, const OpMemory&, Stream& stream) override {
    if (args.dx_mode == GradientMode::skip) return;
    run_activation({.function = d_.function,
                    .dtype = d_.dtype,
                    .n = d_.n_elements,
                    .x = args.x,
                    .dy = args.dy,
                    .out = args.dx,
                    .accumulate = args.dx_mode == GradientMode::accumulate},
                   context_, stream);
  }
};

}  // namespace

void run_activation(const ActivationPass& pass, const CudaContext& context, Stream& stream) {
  with_function(pass.function, pass.dtype, [&]<typename F, typename T>(F, T*) {
    const PackWalk<T> walk(pass.n, are_aligned(pass.x, pass.dy, pass.out));
    launch(activation_pass<F, T>, walk.grid(context), stream, static_cast<const T*>(pass.x),
           static_cast<const T*>(pass.dy), static_cast<T*>(pass.out), pass.accumulate, walk);
  });
}

std::unique_ptr<ActivationOp> make_activation(const ActivationDescription& d, const CudaContext& context) {
  dispatch(d.dtype, [](auto*) {});
  return std::make_unique<CudaActivation>(d, context);
}

}  // namespace lockstep::cuda

// Activation functions (lockstep/ops/activation.h), computed in fp32, 16 bytes per thread at a time.
// Bytes moved: x is read and y written; backward reads x and dy and writes dx, and also reads dx if it accumulates. No
// kernel can move less.
#include "kernels/cuda/activation.h"

#include <memory>

#include "kernels/cuda/base/items.h"
#include "lockstep/ops/activation.h"

namespace lockstep::cuda {
namespace {

__device__ inline float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

struct Relu {
  static __device__ float value(float x) { return x < 0 ? 0.0f : x; }
  static __device__ float derivative(float x) { return x > 0 ? 1.0f : 0.0f; }
};
struct Silu {
  static __device__ float value(float x) { return x * sigmoid(x); }
  static __device__ float derivative(float x) {
    const float s = sigmoid(x);
    return s + x * s * (1 - s);
  }
};
struct Gelu {
  static __device__ float inner(float x) { return 0.7978845608028654f * (x + 0.044715f * x * x * x); }
  static __device__ float value(float x) { return 0.5f * x * (1 + tanhf(inner(x))); }
  static __device__ float derivative(float x) {
    const float t = tanhf(inner(x));
    return 0.5f * (1 + t) + 0.5f * x * (1 - t * t) * 0.7978845608028654f * (1 + 3 * 0.044715f * x * x);
  }
};

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

template <typename T>
decltype(&activation_pass<Relu, T>) kernel_of(ActivationFunction function) {
  if (function == ActivationFunction::relu) return activation_pass<Relu, T>;
  if (function == ActivationFunction::gelu) return activation_pass<Gelu, T>;
  if (function == ActivationFunction::silu) return activation_pass<Silu, T>;
  fail(ErrorCode::internal, "no kernel computes the activation function {}", name(function));
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
  dispatch(pass.dtype, [&]<typename T>(T*) {
    const PackWalk<T> walk(pass.n, are_aligned(pass.x, pass.dy, pass.out));
    launch(kernel_of<T>(pass.function), walk.grid(context), stream, static_cast<const T*>(pass.x),
           static_cast<const T*>(pass.dy), static_cast<T*>(pass.out), pass.accumulate, walk);
  });
}

std::unique_ptr<ActivationOp> make_activation(const ActivationDescription& d, const CudaContext& context) {
  dispatch(d.dtype, [](auto*) {});
  return std::make_unique<CudaActivation>(d, context);
}

}  // namespace lockstep::cuda

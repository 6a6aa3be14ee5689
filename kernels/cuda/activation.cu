// Activation functions (lockstep/ops/activation.h), computed in fp32, 16 bytes per thread at a time.
// Bytes moved: x is read and y written; backward reads x and dy and writes dx, and also reads dx if it accumulates. No
// kernel can move less.
#include "kernels/cuda/activation.h"

#include <memory>

#include "kernels/cuda/base/launch.h"
#include "kernels/cuda/base/numbers.h"
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

/// If `dy` is null, out = f(x). Reads packs of 16 bytes where all pointers are aligned to them, then the remaining
/// elements.
template <typename F, typename T>
__global__ void activation_pass(const T* x, const T* dy, T* out, bool accumulate, std::int64_t n_packs,
                                std::int64_t n) {
  constexpr int kSize = Pack<T>::kSize;
  const std::int64_t first = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  const std::int64_t stride = std::int64_t{gridDim.x} * blockDim.x;
  const auto result = [&](T x_value, T dy_value, T before) {
    const float value = to_float(x_value);
    if (dy == nullptr) return from_float<T>(F::value(value));
    const float dx = to_float(dy_value) * F::derivative(value);
    return from_float<T>(accumulate ? to_float(before) + dx : dx);
  };
  for (std::int64_t i = first; i < n_packs; i += stride) {
    const Pack<T> in = load_pack(x + kSize * i);
    const Pack<T> gradient = dy != nullptr ? load_pack(dy + kSize * i) : in;
    const Pack<T> before = accumulate ? load_pack(out + kSize * i) : in;
    Pack<T> results;
#pragma unroll
    for (int j = 0; j < kSize; ++j) results.values[j] = result(in.values[j], gradient.values[j], before.values[j]);
    store_pack(out + kSize * i, results);
  }
  for (std::int64_t i = n_packs * kSize + first; i < n; i += stride)
    out[i] = result(x[i], dy != nullptr ? dy[i] : x[i], accumulate ? out[i] : x[i]);
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
    const std::int64_t n_packs = are_aligned(pass.x, pass.dy, pass.out) ? pass.n / Pack<T>::kSize : 0;
    const auto n_items = static_cast<std::size_t>(n_packs + pass.n - n_packs * Pack<T>::kSize);
    launch(kernel_of<T>(pass.function), {.blocks = blocks_for(n_items, 256, context.blocks(8))}, stream,
           static_cast<const T*>(pass.x), static_cast<const T*>(pass.dy), static_cast<T*>(pass.out), pass.accumulate,
           n_packs, pass.n);
  });
}

std::unique_ptr<ActivationOp> make_activation(const ActivationDescription& d, const CudaContext& context) {
  dispatch(d.dtype, [](auto*) {});
  return std::make_unique<CudaActivation>(d, context);
}

}  // namespace lockstep::cuda

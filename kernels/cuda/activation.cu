// Activation functions (lockstep/ops/activation.h), computed in fp32, 16 bytes per thread at a time.
// Bytes moved: x is read and y written; backward reads x and dy and writes dx, and also reads dx if it accumulates. No
// kernel can move less.
#include "kernels/cuda/activation.h"

#include <memory>

#include "kernels/cuda/base/launch.h"
#include "kernels/cuda/base/numbers.h"
#include "lockstep/error.h"
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
  switch (function) {
    case ActivationFunction::none:
      break;  // rejected when the op is planned
    case ActivationFunction::relu:
      return activation_pass<Relu, T>;
    case ActivationFunction::gelu:
      return activation_pass<Gelu, T>;
    case ActivationFunction::silu:
      return activation_pass<Silu, T>;
  }
  fail(ErrorCode::internal, "no kernel computes the activation function {}", name(function));
}

void run(ActivationFunction function, DType dtype, const void* x, const void* dy, void* out, bool accumulate,
         std::int64_t n, const CudaContext& context, Stream& stream) {
  dispatch(dtype, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    const std::int64_t n_packs = are_aligned(x, dy, out) ? n / Pack<T>::kSize : 0;
    const auto n_items = static_cast<std::size_t>(n_packs + n - n_packs * Pack<T>::kSize);
    const unsigned limit = static_cast<unsigned>(context.multiprocessors) * 8;
    launch(kernel_of<T>(function), {.blocks = blocks_for(n_items, 256, limit)}, stream, static_cast<const T*>(x),
           static_cast<const T*>(dy), static_cast<T*>(out), accumulate, n_packs, n);
  });
}

class CudaActivation final : public Activation {
 public:
  CudaActivation(const ActivationDescription& d, const CudaContext& context) : d_(d), context_(context) {}

  OpMemoryRequirements memory_requirements() const override { return {}; }
  std::string describe() const override { return fmt::format("{}: own kernel, one pass", name(d_.function)); }

  void run_forward(const Forward& args, const OpMemory&, Stream& stream) override {
    activate(d_.function, d_.dtype, args.x, args.y, d_.n_elements, context_, stream);
  }
  void run_backward(const Backward& args, const OpMemory&, Stream& stream) override {
    if (args.dx_mode == GradientMode::skip) return;
    activation_gradient(d_.function, d_.dtype, args.x, args.dy, args.dx, args.dx_mode == GradientMode::accumulate,
                        d_.n_elements, context_, stream);
  }

 private:
  ActivationDescription d_;
  CudaContext context_;
};

}  // namespace

void activate(ActivationFunction function, DType dtype, const void* x, void* y, std::int64_t n,
              const CudaContext& context, Stream& stream) {
  run(function, dtype, x, nullptr, y, false, n, context, stream);
}

void activation_gradient(ActivationFunction function, DType dtype, const void* x, const void* dy, void* dx,
                         bool accumulate, std::int64_t n, const CudaContext& context, Stream& stream) {
  run(function, dtype, x, dy, dx, accumulate, n, context, stream);
}

std::unique_ptr<Activation> make_activation(const ActivationDescription& d, const CudaContext& context) {
  require(d.n_elements > 0 && d.function != ActivationFunction::none, ErrorCode::op_description,
          "an activation of {} elements by {}: both a function and elements are needed", d.n_elements,
          name(d.function));
  dispatch(d.dtype, [](auto*) {});
  return std::make_unique<CudaActivation>(d, context);
}

}  // namespace lockstep::cuda

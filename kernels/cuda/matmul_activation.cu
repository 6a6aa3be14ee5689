#include "kernels/cuda/base/launch.h"
#include "kernels/cuda/base/numbers.h"
#include "kernels/cuda/matmul_activation.h"

namespace lockstep::cuda {
namespace {

constexpr float kSqrt2OverPi = 0.7978845608028654f, kCubic = 0.044715f;

template <bool kGelu>
__device__ float activated(float z) {
  if (!kGelu) return z > 0 ? z : 0.0f;
  return 0.5f * z * (1 + tanhf(kSqrt2OverPi * (z + kCubic * z * z * z)));
}
template <bool kGelu>
__device__ float derivative(float z) {
  if (!kGelu) return z > 0 ? 1.0f : 0.0f;
  const float t = tanhf(kSqrt2OverPi * (z + kCubic * z * z * z));
  return 0.5f * (1 + t) + 0.5f * z * (1 - t * t) * kSqrt2OverPi * (1 + 3 * kCubic * z * z);
}

/// Packs of 16 bytes, then what is left; all pointers are aligned to 16 bytes. `dy` null: out = f(z).
template <typename T, bool kGelu>
__global__ void pass(const T* z, const T* dy, T* out, std::int64_t n) {
  constexpr int kSize = Pack<T>::kSize;
  const std::int64_t first = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  const std::int64_t stride = std::int64_t{gridDim.x} * blockDim.x, n_packs = n / kSize;
  for (std::int64_t i = first; i < n_packs; i += stride) {
    const Pack<T> in = load_pack(z + kSize * i);
    Pack<T> gradient, result;
    if (dy != nullptr) gradient = load_pack(dy + kSize * i);
#pragma unroll
    for (int j = 0; j < kSize; ++j) {
      const float value = to_float(in.values[j]);
      result.values[j] = from_float<T>(dy != nullptr ? to_float(gradient.values[j]) * derivative<kGelu>(value)
                                                     : activated<kGelu>(value));
    }
    store_pack(out + kSize * i, result);
  }
  for (std::int64_t i = n_packs * kSize + first; i < n; i += stride) {
    const float value = to_float(z[i]);
    out[i] = from_float<T>(dy != nullptr ? to_float(dy[i]) * derivative<kGelu>(value) : activated<kGelu>(value));
  }
}

void run(ActivationFunction function, DType dtype, const void* z, const void* dy, void* out, std::int64_t n,
         const CudaContext& context, Stream& stream) {
  require(are_aligned(z, dy, out), ErrorCode::internal, "an activation's tensors are not aligned to 16 bytes");
  dispatch(dtype, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    const auto items = static_cast<std::size_t>(n / Pack<T>::kSize + 1);
    const unsigned most = static_cast<unsigned>(context.multiprocessors) * 8;
    launch(function == ActivationFunction::gelu ? pass<T, true> : pass<T, false>,
           {.blocks = blocks_for(items, 256, most)}, stream, static_cast<const T*>(z), static_cast<const T*>(dy),
           static_cast<T*>(out), n);
  });
}

}  // namespace

void activate(ActivationFunction function, DType dtype, const void* z, void* y, std::int64_t n,
              const CudaContext& context, Stream& stream) {
  run(function, dtype, z, nullptr, y, n, context, stream);
}

void activation_gradient(ActivationFunction function, DType dtype, const void* z, const void* dy, void* dz,
                         std::int64_t n, const CudaContext& context, Stream& stream) {
  run(function, dtype, z, dy, dz, n, context, stream);
}

}  // namespace lockstep::cuda

// The number types of activations on the device: fp32, fp16 or bf16 in memory, fp32 in registers; 16 bytes at a time.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <cstring>

#include "lockstep/dtype.h"
#include "lockstep/error.h"

namespace lockstep::cuda {

using Half = __half;
using Bfloat16 = __nv_bfloat16;

__host__ __device__ inline float to_float(float value) { return value; }
__host__ __device__ inline float to_float(Half value) { return __half2float(value); }
__host__ __device__ inline float to_float(Bfloat16 value) { return __bfloat162float(value); }

template <typename T>
__host__ __device__ T from_float(float value);
template <>
__host__ __device__ inline float from_float<float>(float value) {
  return value;
}
template <>
__host__ __device__ inline Half from_float<Half>(float value) {
  return __float2half_rn(value);
}
template <>
__host__ __device__ inline Bfloat16 from_float<Bfloat16>(float value) {
  return __float2bfloat16_rn(value);
}

/// Sixteen bytes of memory as numbers; places must be aligned to 16 bytes.
template <typename T>
struct Pack {
  static constexpr int kSize = 16 / sizeof(T);
  alignas(16) T values[kSize];
};

template <typename T>
__device__ inline Pack<T> load_pack(const T* source) {
  const uint4 bits = *reinterpret_cast<const uint4*>(source);
  Pack<T> pack;
  memcpy(&pack, &bits, sizeof(bits));
  return pack;
}
template <typename T>
__device__ inline void store_pack(T* target, const Pack<T>& pack) {
  uint4 bits;
  memcpy(&bits, &pack, sizeof(bits));
  *reinterpret_cast<uint4*>(target) = bits;
}

/// The values that a thread handles together: a pack, or one.
template <int kWidth, typename T>
__device__ Pack<T> load_values(const T* source) {
  if constexpr (kWidth > 1) {
    return load_pack(source);
  } else {
    Pack<T> one;
    one.values[0] = *source;
    return one;
  }
}
template <int kWidth, typename T>
__device__ void store_values(T* target, const Pack<T>& values) {
  if constexpr (kWidth > 1)
    store_pack(target, values);
  else
    *target = values.values[0];
}

/// Stores the values rounded to T in one access, to whose size `target` must be aligned.
template <typename T, int kN>
__device__ inline void store_rounded(T* target, const float (&values)[kN]) {
  struct alignas(kN * sizeof(T)) Rounded {
    T values[kN];
  };
  Rounded rounded;
  for (int i = 0; i < kN; ++i) rounded.values[i] = from_float<T>(values[i]);
  *reinterpret_cast<Rounded*>(target) = rounded;
}

/// Calls `f` with a null pointer to the type of `dtype`: dispatch(dtype, [&](auto* t) { using T = ...; }).
template <typename F>
decltype(auto) dispatch(DType dtype, F&& f) {
  switch (dtype) {
    case DType::fp32:
      return f(static_cast<float*>(nullptr));
    case DType::fp16:
      return f(static_cast<Half*>(nullptr));
    case DType::bf16:
      return f(static_cast<Bfloat16*>(nullptr));
    default:
      fail(ErrorCode::not_supported, "activations are fp32, fp16 or bf16 on the device, not {}", name(dtype));
  }
}

/// True if every pointer may be read 16 bytes at a time.
template <typename... Pointers>
bool are_aligned(const Pointers*... pointers) {
  return ((reinterpret_cast<std::uintptr_t>(pointers) % 16 == 0) && ...);
}

}  // namespace lockstep::cuda

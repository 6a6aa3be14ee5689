// Sums over a warp and over a block, in an order that the block's size alone decides; and the greatest of a block.
#pragma once

#include "kernels/cuda/base/launch.h"

namespace lockstep::cuda {

inline constexpr unsigned kAllLanes = 0xffffffffu;

/// On every lane, the same bits.
template <typename T>
__device__ T warp_sum(T value) {
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) value += __shfl_xor_sync(kAllLanes, value, distance);
  return value;
}

/// On every thread, the same bits. All threads of the block call it.
template <unsigned kThreads, typename T>
__device__ T block_sum(T value) {
  constexpr unsigned kWarps = kThreads / 32;
  __shared__ T sums[kWarps];
  value = warp_sum(value);
  __syncthreads();  // of a sum before this one
  if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = value;
  __syncthreads();
  return warp_sum(threadIdx.x % 32 < kWarps ? sums[threadIdx.x % 32] : T{});
}

/// On every lane. A NaN is passed over.
template <typename T>
__device__ T warp_max(T value) {
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) {
    const T other = __shfl_xor_sync(kAllLanes, value, distance);
    value = other > value ? other : value;
  }
  return value;
}

/// On every thread. All threads of the block call it.
template <unsigned kThreads, typename T>
__device__ T block_max(T value) {
  constexpr unsigned kWarps = kThreads / 32;
  __shared__ T greatest[kWarps];
  value = warp_max(value);
  __syncthreads();  // of a call before this one
  if (threadIdx.x % 32 == 0) greatest[threadIdx.x / 32] = value;
  __syncthreads();
  return warp_max(greatest[threadIdx.x % kWarps]);
}

}  // namespace lockstep::cuda

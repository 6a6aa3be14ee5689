// Sums over a warp and over a block, in an order that depends on the block's size alone; and the maximum over a block.
#pragma once

#include "kernels/cuda/base/launch.h"

namespace lockstep::cuda {

inline constexpr unsigned kAllLanes = 0xffffffffu;

/// Every lane gets the sum, with the same bits.
template <typename T>
__device__ T warp_sum(T value) {
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) value += __shfl_xor_sync(kAllLanes, value, distance);
  return value;
}

/// Every thread gets the sum, with the same bits. All threads of the block must call it.
template <unsigned kThreads, typename T>
__device__ T block_sum(T value) {
  constexpr unsigned kWarps = kThreads / 32;
  __shared__ T sums[kWarps];
  value = warp_sum(value);
  __syncthreads();  // `sums` may still be read by the previous call
  if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = value;
  __syncthreads();
  return warp_sum(threadIdx.x % 32 < kWarps ? sums[threadIdx.x % 32] : T{});
}

/// Every lane gets the maximum. NaNs are ignored.
template <typename T>
__device__ T warp_max(T value) {
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) {
    const T other = __shfl_xor_sync(kAllLanes, value, distance);
    value = other > value ? other : value;
  }
  return value;
}

/// Every thread gets the maximum. All threads of the block must call it.
template <unsigned kThreads, typename T>
__device__ T block_max(T value) {
  constexpr unsigned kWarps = kThreads / 32;
  __shared__ T greatest[kWarps];
  value = warp_max(value);
  __syncthreads();  // `greatest` may still be read by the previous call
  if (threadIdx.x % 32 == 0) greatest[threadIdx.x / 32] = value;
  __syncthreads();
  return warp_max(greatest[threadIdx.x % kWarps]);
}

}  // namespace lockstep::cuda

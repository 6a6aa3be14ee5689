// CUDA's keywords and functions for a host compiler: a kernel becomes a function that run_grid() calls once for each
// thread of a grid, each in a fiber of its own. Fibers are switched at __syncthreads() and at warp shuffles. A warp
// runs until it reaches a barrier, and then the next warp runs. The order in which warps and their lanes resume is
// shuffled differently for each launch (LOCKSTEP_CUDA_ON_HOST_SEED). A missing barrier therefore leads to a wrong
// result, either because another warp has not written yet or because it writes again too early
// (test/kernels/cuda_on_host_test.cpp). Blocks run one after another. A barrier that a live thread never reaches ends
// the program with a message. Types and host conversions (uint4, __half) are those of the toolkit's own headers.
#pragma once

#include <cuda_runtime_api.h>
#include <vector_functions.h>
#include <vector_types.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <type_traits>
#include <typeinfo>

#include "test/support/cuda_on_host/launches.h"

// For a host compiler, the toolkit's headers define these as nothing.
#undef __shared__
#define __shared__ static
#undef __launch_bounds__
#define __launch_bounds__(...)
#undef __grid_constant__
#define __grid_constant__
#ifndef __restrict__
#define __restrict__
#endif

namespace lockstep::cuda_fibers {

struct HostGrid {
  unsigned blocks = 1, blocks_y = 1, threads = 1, shared_bytes = 0;
};

/// Calls `thread` blocks * blocks_y * threads times.
void run_grid(const HostGrid& grid, const std::function<void()>& thread);

/// The coordinates of the running thread.
struct Coordinates {
  dim3 thread, block, block_dim, grid_dim;
};
extern Coordinates current;

void block_barrier();
/// Every lane of the warp sends 8 bytes and receives those of `lane` of its warp.
std::uint64_t exchange(std::uint64_t mine, int lane);
/// This thread's index in its warp.
int lane();
void* dynamic_shared_memory();

template <typename T>
T* shared_memory() {
  return static_cast<T*>(dynamic_shared_memory());
}

template <typename T>
T exchange_value(T mine, int source_lane) {
  static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= 8);
  std::uint64_t bits = 0;
  std::memcpy(&bits, &mine, sizeof(T));
  bits = exchange(bits, source_lane);
  std::memcpy(&mine, &bits, sizeof(T));
  return mine;
}

}  // namespace lockstep::cuda_fibers

#define threadIdx (::lockstep::cuda_fibers::current.thread)
#define blockIdx (::lockstep::cuda_fibers::current.block)
#define blockDim (::lockstep::cuda_fibers::current.block_dim)
#define gridDim (::lockstep::cuda_fibers::current.grid_dim)

inline void __syncthreads() { ::lockstep::cuda_fibers::block_barrier(); }
inline void __syncwarp(unsigned = 0xffffffffu) { ::lockstep::cuda_fibers::exchange(0, 0); }
template <typename T>
T __shfl_sync(unsigned, T value, int source) {
  return ::lockstep::cuda_fibers::exchange_value(value, source & 31);
}
template <typename T>
T __shfl_xor_sync(unsigned, T value, int mask) {
  return ::lockstep::cuda_fibers::exchange_value(value, ::lockstep::cuda_fibers::lane() ^ mask);
}
/// A lane keeps its own value if the source is beyond the end of the warp.
template <typename T>
T __shfl_down_sync(unsigned, T value, unsigned delta) {
  const int lane = ::lockstep::cuda_fibers::lane();
  const int source = lane + static_cast<int>(delta);
  return ::lockstep::cuda_fibers::exchange_value(value, source < 32 ? source : lane);
}
template <typename T>
T __ldg(const T* place) {
  return *place;
}
template <typename T>
T atomicAdd(T* place, T value) {
  static_assert(std::is_unsigned_v<T>);
  const T before = *place;
  *place += value;
  return before;
}
inline void __threadfence() {}
inline void __threadfence_system() {}
// Compiled without contraction to fused multiply-adds
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fadd_rn(float a, float b) { return a + b; }
inline double __dmul_rn(double a, double b) { return a * b; }

// The only function that starts kernels: launch(kernel, Grid, stream, arguments...).
//
// The same sources compile twice. nvcc compiles them to device code. For tests, a host compiler compiles them to
// functions that run each thread as a fiber (test/support/cuda_on_host), so that their arithmetic, indexing and
// barriers are checked on machines without a GPU. Kernels therefore use only: static __shared__ arrays, or
// shared_memory<T>() for a size known at launch; __syncthreads(); __shfl_*_sync() with all lanes of a warp; no atomics
// on floating-point numbers (their order would change the bits from run to run).
#pragma once

#include "lockstep/event.h"
#include "lockstep/launches.h"

#ifdef __CUDACC__
#include <cuda_runtime.h>

#include "kernels/cuda/base/check.h"
#include "kernels/cuda/base/stream.h"
#endif  // else the command line includes test/support/cuda_on_host/runtime.h

namespace lockstep::cuda {

/// The bytes of `n_passes` reads or writes of rows * width numbers.
inline double moved_bytes(double n_passes, std::int64_t rows, std::int64_t width, std::size_t size_bytes) {
  return n_passes * static_cast<double>(rows) * static_cast<double>(width) * static_cast<double>(size_bytes);
}

struct Grid {
  unsigned blocks = 1;
  unsigned threads = 256;  // of a block; a multiple of 32
  unsigned blocks_y = 1;
  unsigned shared_bytes = 0;    // shared_memory<T>()
  bool is_cooperative = false;  // all blocks run at the same time, and may wait for each other
  Launch work{};                // without the blocks

  Launch listed() const {
    Launch launch = work;
    launch.blocks = 1.0 * blocks * blocks_y;
    return launch;
  }
};

inline constexpr unsigned kSharedBytes = 48 << 10;  // of a block on every GPU; kernels must ask for more

#ifdef __CUDACC__
template <typename... Parameters, typename... Arguments>
void launch(void (*kernel)(Parameters...), const Grid& grid, Stream& stream, Arguments... arguments) {
  if (grid.blocks == 0 || grid.blocks_y == 0) return;
  launch_pending();
  if (LaunchList* const list = LaunchList::current()) return list->add(grid.listed());
  if (grid.shared_bytes > kSharedBytes)
    LOCKSTEP_CUDA_CHECK(
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(grid.shared_bytes)));
  cudaLaunchAttribute cooperative{};
  cooperative.id = cudaLaunchAttributeCooperative;
  cooperative.val.cooperative = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(grid.blocks, grid.blocks_y);
  config.blockDim = grid.threads;
  config.dynamicSmemBytes = grid.shared_bytes;
  config.stream = native(stream);
  config.attrs = &cooperative;
  config.numAttrs = grid.is_cooperative ? 1 : 0;
  LOCKSTEP_CUDA_CHECK(cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(arguments)...));
  LOCKSTEP_CUDA_CHECK(cudaGetLastError());
}

template <typename T>
__device__ T* shared_memory() {
  extern __shared__ __align__(16) unsigned char dynamic_shared_memory[];
  return reinterpret_cast<T*>(dynamic_shared_memory);
}
#else
template <typename... Parameters, typename... Arguments>
void launch(void (*kernel)(Parameters...), const Grid& grid, Stream&, Arguments... arguments) {
  if (grid.blocks == 0 || grid.blocks_y == 0) return;
  launch_pending();
  cuda_fibers::record_launch(typeid(kernel));
  cuda_fibers::run_grid({grid.blocks, grid.blocks_y, grid.threads, grid.shared_bytes},
                        [&] { kernel(static_cast<Parameters>(arguments)...); });
}
using cuda_fibers::shared_memory;
#endif

/// Blocks of `threads` with a thread for each of `n` items, but at most `limit`: kernels loop over the remaining items.
inline unsigned blocks_for(std::size_t n, unsigned threads, unsigned limit) {
  const std::size_t blocks = (n + threads - 1) / threads;
  return static_cast<unsigned>(blocks < limit ? blocks : limit);
}

}  // namespace lockstep::cuda

// Kernels whose threads loop over items, such as the numbers of tensors: the grid, a thread's items, and the numbers of
// tensors in packs of 16 bytes.
#pragma once

#include <cstdint>
#include <type_traits>

#include "kernels/cuda/base/context.h"
#include "kernels/cuda/base/launch.h"
#include "kernels/cuda/base/numbers.h"

namespace lockstep::cuda {

/// The first item of this thread, and the distance to its next item.
__device__ inline std::int64_t first_item() { return std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x; }
__device__ inline std::int64_t item_stride() { return std::int64_t{gridDim.x} * blockDim.x; }

/// One thread per item, with up to eight blocks per multiprocessor.
inline Grid grid_of_items(std::int64_t items, const CudaContext& context) {
  constexpr unsigned kThreads = 256;
  return {.blocks = blocks_for(static_cast<std::size_t>(items), kThreads, context.blocks(8)), .threads = kThreads};
}

/// The numbers of tensors of type T: in packs if all tensors are aligned to 16 bytes, and the remaining ones one by
/// one.
template <typename T>
struct PackWalk {
  std::int64_t n = 0, n_packs = 0;

  PackWalk(std::int64_t n, bool are_aligned) : n(n), n_packs(are_aligned ? n / Pack<T>::kSize : 0) {}
  Grid grid(const CudaContext& context) const { return grid_of_items(n_packs + n - n_packs * Pack<T>::kSize, context); }
  /// Calls f(width, i) for numbers [i, i + width), where the width is that of a pack or 1.
  template <typename F>
  __device__ void for_each(const F& f) const {
    constexpr int kSize = Pack<T>::kSize;
    for (std::int64_t i = first_item(); i < n_packs; i += item_stride())
      f(std::integral_constant<int, kSize>{}, i * kSize);
    for (std::int64_t i = n_packs * kSize + first_item(); i < n; i += item_stride())
      f(std::integral_constant<int, 1>{}, i);
  }
};

}  // namespace lockstep::cuda

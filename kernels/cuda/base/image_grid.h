// The grid of kernels that copy and change images (N, H, W, C) value by value: a row of blocks for each image, which
// process its values in packs of 16 bytes if every image begins at a multiple of 16 bytes, and one by one otherwise.
#pragma once

#include <algorithm>

#include "kernels/cuda/base/context.h"
#include "kernels/cuda/base/launch.h"
#include "kernels/cuda/base/numbers.h"
#include "lockstep/error.h"
#include "lockstep/shape.h"

namespace lockstep::cuda {

inline constexpr unsigned kImageThreads = 256;

struct ImageShape {
  int n = 0, height = 0, width = 0, channels = 0;
  __host__ __device__ int image_elements() const { return height * width * channels; }
};

/// `what`: the op, for messages.
inline ImageShape image_shape(const Shape& x, const char* what) {
  require(x.rank() == 4 && x.n_elements() > 0, ErrorCode::internal, "{} needs images (N, H, W, C), not {}", what,
          x.text());
  require(x[1] * x[2] * x[3] < (std::int64_t{1} << 30), ErrorCode::not_supported,
          "{} on the device supports images of less than 2^30 values, not {}", what, x.text());
  return {.n = static_cast<int>(x[0]),
          .height = static_cast<int>(x[1]),
          .width = static_cast<int>(x[2]),
          .channels = static_cast<int>(x[3])};
}

template <typename T, typename... Pointers>
bool goes_by_packs(const ImageShape& images, const Pointers*... pointers) {
  return images.image_elements() % Pack<T>::kSize == 0 && are_aligned(pointers...);
}

/// `width`: the number of values that a thread handles together.
inline Grid image_grid(const ImageShape& images, int width, const CudaContext& context) {
  constexpr unsigned kBlocksPerMultiprocessor = 16, kMaxBlocksY = 65535;
  const unsigned n = std::min(static_cast<unsigned>(images.n), kMaxBlocksY);
  const unsigned limit = std::max(context.blocks(kBlocksPerMultiprocessor) / n, 1u);
  const auto steps = static_cast<std::size_t>(images.image_elements() / width);
  return {.blocks = blocks_for(steps, kImageThreads, limit), .threads = kImageThreads, .blocks_y = n};
}

}  // namespace lockstep::cuda

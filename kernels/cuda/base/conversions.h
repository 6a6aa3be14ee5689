// Small kernels that convert between the types in which gradients, factors and sums are kept (fp32, fp64) and those of
// the libraries' kernels, and sums of columns. A conversion is one launch; an unused part has no elements.
#pragma once

#include <array>
#include <cstdint>

#include "kernels/cuda/base/context.h"
#include "lockstep/dtype.h"
#include "lockstep/event.h"
#include "lockstep/shape.h"

namespace lockstep::cuda {

/// A matrix in two forms, one of which has longer rows; these are padded with zeros.
struct Rows {
  std::int64_t n_rows = 0;
  std::int64_t length = 0;  // of a row
  std::int64_t padded = 0;  // of a padded row; at least `length`
};

/// target (n_rows, length) of fp32, overwritten or added to, from source (n_rows, padded) of fp16 or bf16.
void widen(DType dtype, const void* source, float* target, const Rows& rows, bool accumulate,
           const CudaContext& context, Stream& stream);

/// target (n_rows, padded) = source (n_rows, length), both fp16 or bf16; `padded` 4 or 8.
void pad_rows(DType dtype, const void* source, void* target, const Rows& rows, const CudaContext& context,
              Stream& stream);

/// A convolution of stride 2 as one of stride 1 over blocks of 2 x 2 pixels, whose channels are concatenated (space to
/// depth): few channels become enough for tensor cores, and a window of 7 becomes one of 4. Pixels outside of the
/// images are part of the blocks, as zeros, so that the block convolution has no padding.
struct PixelBlocks {
  Shape x;                        // (N, H, W, C) pixels
  std::int64_t out_channels = 0;  // K
  int kernel_size = 0;            // R, of pixels
  int padding = 0;                // of pixels
  Shape blocks{};                 // (N, H', W', D) blocks; D >= 4 C, a multiple of 8, zeros after the 4 C
  int block_kernel_size = 0;      // R'
  int before() const { return (padding + 1) / 2; }      // blocks in front of the images
  int shift() const { return 2 * before() - padding; }  // pixels in front of the window in its first block
};
PixelBlocks pixel_blocks(const Shape& x, std::int64_t out_channels, int kernel_size, int padding);

/// blocks = x
void to_blocks(DType dtype, const void* x, void* blocks, const PixelBlocks& of, const CudaContext& context,
               Stream& stream);
/// target (K, R', R', D) = source (K, R, R, C), both fp16 or bf16: each pixel of the window goes to its place in the
/// blocks.
void weights_to_blocks(DType dtype, const void* source, void* target, const PixelBlocks& of, const CudaContext& context,
                       Stream& stream);
/// target (K, R, R, C) of fp32, overwritten or added to, from source (K, R', R', D).
void widen_from_blocks(DType dtype, const void* source, float* target, const PixelBlocks& of, bool accumulate,
                       const CudaContext& context, Stream& stream);

/// target (n) = source (n)
struct DoubleSums {
  const float* source = nullptr;
  double* target = nullptr;
  std::int64_t n = 0;
};
void to_double(const std::array<DoubleSums, 2>& parts, const CudaContext& context, Stream& stream);

/// sums (n_columns) over the rows of `values` (n_rows, n_columns), overwritten or added to. There are two stages, so
/// that a matrix of many rows fills the device: blocks of rows, and the sums of blocks. Both depend on the shape alone,
/// and so do the bits. Bytes moved: `values` once, and 8 for each block and column.
struct ColumnSums {
  std::int64_t n_rows = 0, n_columns = 0;
  DType dtype = DType::fp32;
};
std::size_t sum_columns_workspace_bytes(const ColumnSums& shape);
/// `sums`: fp32, or of the type of the values.
void sum_columns(const ColumnSums& shape, const void* values, TypedPointer sums, bool accumulate, void* workspace,
                 Stream& stream);
/// The second stage: sums (n_columns) over `partial` (n, n_columns), in one launch.
void add_partial_sums(const float* partial, std::int64_t n, std::int64_t n_columns, TypedPointer sums, bool accumulate,
                      Stream& stream);

}  // namespace lockstep::cuda

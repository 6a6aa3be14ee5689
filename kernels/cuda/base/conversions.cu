#include "kernels/cuda/base/conversions.h"

#include "kernels/cuda/base/fast_divide.h"
#include "kernels/cuda/base/items.h"
#include "kernels/cuda/base/rows.h"

namespace lockstep::cuda {
namespace {

constexpr unsigned kThreads = 256;

/// Calls f with a null pointer to the type for fp16 or bf16.
template <typename F>
void for_half(DType dtype, F&& f) {
  dtype == DType::fp16 ? f(static_cast<Half*>(nullptr)) : f(static_cast<Bfloat16*>(nullptr));
}

// ---- fp16 or bf16 to fp32 -------------------------------------------------------------------------------------------

inline bool is_whole_packs(std::int64_t n_elements, const void* a, const void* b) {
  return n_elements % 8 == 0 && (reinterpret_cast<std::uintptr_t>(a) | reinterpret_cast<std::uintptr_t>(b)) % 16 == 0;
}

template <typename T, bool kAccumulate>
__global__ void widen_packs(const T* source, float* target, std::int64_t n_packs) {
  for (std::int64_t i = first_item(); i < n_packs; i += item_stride()) {
    Floats<8> values = load_floats<8>(source + 8 * i);
    if constexpr (kAccumulate) {
      const Floats<8> before = load_floats<8>(target + 8 * i);
#pragma unroll
      for (int j = 0; j < 8; ++j) values[j] += before[j];
    }
    store_floats(target + 8 * i, values);
  }
}
template <typename T, bool kAccumulate>
__global__ void widen_rows(const T* source, float* target, Rows rows) {
  for (std::int64_t i = first_item(); i < rows.n_rows * rows.length; i += item_stride()) {
    const std::int64_t row = i / rows.length, column = i % rows.length;
    const float value = to_float(source[row * rows.padded + column]);
    target[i] = kAccumulate ? target[i] + value : value;
  }
}

/// One thread per row. It stores the row in a single access.
template <typename T, int kPadded>
__global__ void pad_each_row(const T* source, T* target, std::int64_t n_rows, int length) {
  struct alignas(kPadded * sizeof(T)) Row {
    T values[kPadded];
  };
  for (std::int64_t row = first_item(); row < n_rows; row += item_stride()) {
    Row out;
#pragma unroll
    for (int i = 0; i < kPadded; ++i) out.values[i] = i < length ? source[row * length + i] : from_float<T>(0.0f);
    reinterpret_cast<Row*>(target)[row] = out;
  }
}

// ---- Blocks of 2 x 2 pixels -----------------------------------------------------------------------------------------

/// What the kernels know about PixelBlocks. A channel of a block is (row in block, column in block, channel of x).
struct BlockSizes {
  int height, width, channels;  // of x
  int block_channels;
  int kernel_size, block_kernel_size, before, shift;
};

/// The divisions for each pack of eight channels of a block. There are fewer than 2^28 packs, since tensors of
/// convolutions have fewer than 2^31 elements.
struct BlockDivisions {
  FastDivide by_packs, by_block_width, by_block_height, by_channels;
};

/// One thread per eight channels of a block. It stores them in a single access.
template <typename T>
__global__ void pixels_to_blocks(const T* x, T* blocks, std::uint32_t n_packs, BlockSizes s, BlockDivisions divide) {
  for (std::int64_t item = first_item(); item < n_packs; item += item_stride()) {
    const auto i = static_cast<std::uint32_t>(item);
    const std::uint32_t block = divide.by_packs.quotient(i), block_row = divide.by_block_width.quotient(block);
    const std::uint32_t image = divide.by_block_height.quotient(block_row);
    const std::uint32_t first = 8 * divide.by_packs.remainder(i, block);
    const int top = 2 * (static_cast<int>(divide.by_block_height.remainder(block_row, image)) - s.before);
    const int left = 2 * (static_cast<int>(divide.by_block_width.remainder(block, block_row)) - s.before);
    // The block's first pixel, which may lie outside; only pixels inside are read.
    const std::int64_t begin = ((std::int64_t{image} * s.height + top) * s.width + left) * s.channels;
    Pack<T> out;
#pragma unroll
    for (std::uint32_t j = 0; j < 8; ++j) {
      const std::uint32_t place = divide.by_channels.quotient(first + j);
      const int channel = static_cast<int>(divide.by_channels.remainder(first + j, place));
      const int down = static_cast<int>(place / 2), right = static_cast<int>(place % 2);
      const int row = top + down, column = left + right;
      const bool is_pixel = place < 4 && row >= 0 && row < s.height && column >= 0 && column < s.width;
      out.values[j] = is_pixel ? x[begin + (down * s.width + right) * s.channels + channel] : from_float<T>(0.0f);
    }
    store_pack(blocks + 8 * item, out);
  }
}

// These are the weights of one convolution, a few tens of thousands, so 32-bit indices are sufficient.

template <typename T>
__global__ void window_to_blocks(const T* source, T* target, int n, BlockSizes s) {
  for (int i = static_cast<int>(first_item()); i < n; i += static_cast<int>(item_stride())) {
    const int d = i % s.block_channels, place = d / s.channels;
    const int tap = i / s.block_channels, block_row = tap / s.block_kernel_size;
    const int row = 2 * (block_row % s.block_kernel_size) + place / 2 - s.shift;
    const int column = 2 * (tap % s.block_kernel_size) + place % 2 - s.shift;
    const bool is_pixel = place < 4 && row >= 0 && row < s.kernel_size && column >= 0 && column < s.kernel_size;
    const int k = block_row / s.block_kernel_size;
    target[i] = is_pixel ? source[((k * s.kernel_size + row) * s.kernel_size + column) * s.channels + d % s.channels]
                         : from_float<T>(0.0f);
  }
}

template <typename T, bool kAccumulate>
__global__ void window_from_blocks(const T* source, float* target, int n, BlockSizes s) {
  for (int i = static_cast<int>(first_item()); i < n; i += static_cast<int>(item_stride())) {
    const int tap = i / s.channels, window_row = tap / s.kernel_size, k = window_row / s.kernel_size;
    const int row = window_row % s.kernel_size + s.shift, column = tap % s.kernel_size + s.shift;
    const int d = (2 * (row % 2) + column % 2) * s.channels + i % s.channels;
    const float value = to_float(
        source[((k * s.block_kernel_size + row / 2) * s.block_kernel_size + column / 2) * s.block_channels + d]);
    target[i] = kAccumulate ? target[i] + value : value;
  }
}

// ---- Numbers for each channel ---------------------------------------------------------------------------------------

__global__ void sums_to_double(DoubleSums a, DoubleSums b) {
  for (std::int64_t i = first_item(); i < a.n; i += item_stride()) a.target[i] = a.source[i];
  for (std::int64_t i = first_item(); i < b.n; i += item_stride()) b.target[i] = b.source[i];
}

/// Each lane of a block adds up its rows, and the block adds its lanes. sums (gridDim.x, columns).
template <typename T, typename S, int kN>
__global__ void __launch_bounds__(kThreads)
    add_rows(const T* values, S* sums, std::int64_t n_rows, bool accumulate, const RowWalk walk) {
  constexpr int kRows = 4;  // loaded together
  const RowPlace<kN> place(walk);
  Floats<kN> sum{};
  for (std::int64_t row = place.row; place.is_inside && row < n_rows; row += kRows * place.row_step) {
    Vector<T, kN> value[kRows] = {};
#pragma unroll
    for (int k = 0; k < kRows; ++k) {
      const std::int64_t at = row + k * place.row_step;
      if (at < n_rows) value[k] = load_vector<kN>(values + at * walk.c + place.channel);
    }
#pragma unroll
    for (int k = 0; k < kRows; ++k)
#pragma unroll
      for (int i = 0; i < kN; ++i) sum[i] += value[k][i];
  }
  add_lanes<kThreads>(sum, walk.columns, walk.lanes, [&](unsigned i, float total) {
    const std::int64_t column = std::int64_t{blockIdx.y} * walk.columns * kN + i;
    if (column >= walk.c) return;
    S& target = sums[blockIdx.x * walk.c + column];
    target = from_float<S>(accumulate ? to_float(target) + total : total);
  });
}

/// At most kMaxBlocks blocks, which fill a device and depend on the shape alone.
RowWalk walk_of(const ColumnSums& shape, int vector_size) {
  constexpr unsigned kMaxBlocks = 512, kLeastRows = 8;
  return {shape.n_rows, shape.n_columns, vector_size, kThreads, kMaxBlocks, kLeastRows};
}

}  // namespace

void widen(DType dtype, const void* source, float* target, const Rows& rows, bool accumulate,
           const CudaContext& context, Stream& stream) {
  const std::int64_t n = rows.n_rows * rows.length;
  for_half(dtype, [&]<typename T>(T*) {
    const T* typed = static_cast<const T*>(source);
    if (rows.length == rows.padded && is_whole_packs(n, source, target)) {
      Grid grid = grid_of_items(n / 8, context);
      grid.work = {.kind = "packs", .bytes = moved_bytes(1, n, 1, sizeof(T) + (accumulate ? 2 : 1) * sizeof(float))};
      launch(accumulate ? widen_packs<T, true> : widen_packs<T, false>, grid, stream, typed, target, n / 8);
    } else {
      Grid grid = grid_of_items(n, context);
      grid.work = {.kind = "elements", .bytes = moved_bytes(1, n, 1, sizeof(T) + (accumulate ? 2 : 1) * sizeof(float))};
      launch(accumulate ? widen_rows<T, true> : widen_rows<T, false>, grid, stream, typed, target, rows);
    }
  });
}

void pad_rows(DType dtype, const void* source, void* target, const Rows& rows, const CudaContext& context,
              Stream& stream) {
  for_half(dtype, [&]<typename T>(T*) {
    launch(rows.padded == 4 ? pad_each_row<T, 4> : pad_each_row<T, 8>, grid_of_items(rows.n_rows, context), stream,
           static_cast<const T*>(source), static_cast<T*>(target), rows.n_rows, static_cast<int>(rows.length));
  });
}

PixelBlocks pixel_blocks(const Shape& x, std::int64_t out_channels, int kernel_size, int padding) {
  PixelBlocks of{.x = x, .out_channels = out_channels, .kernel_size = kernel_size, .padding = padding};
  of.block_kernel_size = (kernel_size + of.shift() + 1) / 2;
  const auto n_blocks = [&](std::int64_t size) {
    return (size + 2 * padding - kernel_size) / 2 + of.block_kernel_size;
  };
  of.blocks = {x[0], n_blocks(x[1]), n_blocks(x[2]), (4 * x[3] + 7) / 8 * 8};
  return of;
}

namespace {

BlockSizes sizes_of(const PixelBlocks& of) {
  const auto number = [](std::int64_t value) { return static_cast<int>(value); };
  return {.height = number(of.x[1]),
          .width = number(of.x[2]),
          .channels = number(of.x[3]),
          .block_channels = number(of.blocks[3]),
          .kernel_size = of.kernel_size,
          .block_kernel_size = of.block_kernel_size,
          .before = of.before(),
          .shift = of.shift()};
}
std::int64_t block_weights(const PixelBlocks& of) {
  return of.out_channels * of.block_kernel_size * of.block_kernel_size * of.blocks[3];
}

}  // namespace

void to_blocks(DType dtype, const void* x, void* blocks, const PixelBlocks& of, const CudaContext& context,
               Stream& stream) {
  const std::int64_t n_packs = of.blocks.n_elements() / 8;
  const auto by = [](std::int64_t divisor) { return FastDivide(static_cast<std::uint32_t>(divisor)); };
  const BlockDivisions divisions{by(of.blocks[3] / 8), by(of.blocks[2]), by(of.blocks[1]), by(of.x[3])};
  for_half(dtype, [&]<typename T>(T*) {
    Grid grid = grid_of_items(n_packs, context);
    grid.work = {.kind = "packs", .bytes = moved_bytes(1, of.blocks.n_elements() + of.x.n_elements(), 1, sizeof(T))};
    launch(pixels_to_blocks<T>, grid, stream, static_cast<const T*>(x), static_cast<T*>(blocks), n_packs, sizes_of(of),
           divisions);
  });
}

void weights_to_blocks(DType dtype, const void* source, void* target, const PixelBlocks& of, const CudaContext& context,
                       Stream& stream) {
  for_half(dtype, [&]<typename T>(T*) {
    Grid grid = grid_of_items(block_weights(of), context);
    grid.work = {.kind = "small"};
    launch(window_to_blocks<T>, grid, stream, static_cast<const T*>(source), static_cast<T*>(target), block_weights(of),
           sizes_of(of));
  });
}

void widen_from_blocks(DType dtype, const void* source, float* target, const PixelBlocks& of, bool accumulate,
                       const CudaContext& context, Stream& stream) {
  const std::int64_t n = of.out_channels * of.kernel_size * of.kernel_size * of.x[3];
  for_half(dtype, [&]<typename T>(T*) {
    Grid grid = grid_of_items(n, context);
    grid.work = {.kind = "small"};
    launch(accumulate ? window_from_blocks<T, true> : window_from_blocks<T, false>, grid, stream,
           static_cast<const T*>(source), target, n, sizes_of(of));
  });
}

void to_double(const std::array<DoubleSums, 2>& parts, const CudaContext& context, Stream& stream) {
  Grid grid = grid_of_items(std::max(parts[0].n, parts[1].n), context);
  grid.work = {.kind = "small"};
  launch(sums_to_double, grid, stream, parts[0], parts[1]);
}

std::size_t sum_columns_workspace_bytes(const ColumnSums& shape) {
  const auto pack = static_cast<int>(16 / size_bytes(shape.dtype));
  unsigned blocks = walk_of(shape, 1).grid.blocks;
  if (shape.n_columns % pack == 0) blocks = std::max(blocks, walk_of(shape, pack).grid.blocks);
  return static_cast<std::size_t>(blocks * shape.n_columns) * sizeof(float);
}

void sum_columns(const ColumnSums& shape, const void* values, TypedPointer sums, bool accumulate, void* workspace,
                 Stream& stream) {
  dispatch(shape.dtype, [&]<typename T>(T*) {
    const bool by_packs = allows_packs<T>(shape.n_columns, values);
    RowWalk walk = walk_of(shape, by_packs ? Pack<T>::kSize : 1);
    walk.grid.work = {.kind = by_packs ? "packs" : "elements",
                      .bytes = moved_bytes(1, shape.n_rows, shape.n_columns, sizeof(T)) +
                               moved_bytes(1, walk.grid.blocks, shape.n_columns, sizeof(float))};
    const bool is_single = walk.grid.blocks == 1 && sums.dtype == DType::fp32;
    auto* const partial = static_cast<float*>(workspace);
    launch(by_packs ? add_rows<T, float, Pack<T>::kSize> : add_rows<T, float, 1>, walk.grid, stream,
           static_cast<const T*>(values), is_single ? sums.as<float>() : partial, shape.n_rows, is_single && accumulate,
           walk);
    if (!is_single) add_partial_sums(partial, walk.grid.blocks, shape.n_columns, sums, accumulate, stream);
  });
}

void add_partial_sums(const float* partial, std::int64_t n, std::int64_t n_columns, TypedPointer sums, bool accumulate,
                      Stream& stream) {
  constexpr unsigned kMaxColumns = 8;  // of a block: 32 bytes, the least that memory gives; the other threads take rows
  RowWalk walk(n, n_columns, 1, kThreads, 1, 1, kMaxColumns);
  walk.grid.work = {.kind = "small", .bytes = moved_bytes(1, n, n_columns, sizeof(float))};
  dispatch(sums.dtype, [&]<typename S>(S*) {
    launch(add_rows<float, S, 1>, walk.grid, stream, partial, static_cast<S*>(sums.data), n, accumulate, walk);
  });
}

}  // namespace lockstep::cuda

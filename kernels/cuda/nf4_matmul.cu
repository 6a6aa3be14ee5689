// Matmul with a weight in NF4 (lockstep/ops/nf4_matmul.h). Forward expands some rows of the weight at a time into a
// tile of 33 MiB on an H200, which mostly stays in the L2 cache, and cuBLASLt multiplies x by them, which computes some
// columns of y. dx is computed from some columns of the weight at a time, so that each of its elements is one sum and
// is rounded once. A thread expands eight codes: it reads 4 bytes and a scale, and writes 16 bytes, or 32 in fp32.
// Bytes moved besides the products: the weight, 0.52 bytes per element, which is the floor, and in the L2 cache the
// tile, 2 in 16 bits. Launches: one for each matrix in a tile, besides the product.
#include <algorithm>
#include <memory>

#include "kernels/cuda/base/fast_divide.h"
#include "kernels/cuda/base/items.h"
#include "kernels/cuda/base/rows.h"
#include "kernels/cuda/matmul_bare.h"
#include "lockstep/ops/nf4_matmul.h"
#include "lockstep/workspace.h"

namespace lockstep::cuda {
namespace {

constexpr unsigned kThreads = 256;
constexpr std::int64_t kTileBytes = std::int64_t{256} << 10;  // for each multiprocessor: H200s have 388 KiB of L2
constexpr int kCodes = 8;                                     // of a thread
constexpr std::int64_t kMultiple = 64;  // of rows and columns of a tile, which aligns it to 128 bytes

std::string text(const Nf4MatmulDescription& d) {
  return fmt::format("matmul ({}, {}) -> {} in NF4{}, {}", d.rows, d.in_features, d.out_features(),
                     d.bias ? " with bias" : "", d.tf32 ? "tf32" : name(d.dtype));
}

struct MatrixInNf4 {
  const std::uint8_t *codes = nullptr, *scale_codes = nullptr;
  const float *scales_of_scales = nullptr, *offset = nullptr, *scale_values = nullptr;
  std::int64_t in_features = 0;
};

__constant__ const float kValues[16] = {kNf4Values[0],  kNf4Values[1],  kNf4Values[2],  kNf4Values[3],
                                        kNf4Values[4],  kNf4Values[5],  kNf4Values[6],  kNf4Values[7],
                                        kNf4Values[8],  kNf4Values[9],  kNf4Values[10], kNf4Values[11],
                                        kNf4Values[12], kNf4Values[13], kNf4Values[14], kNf4Values[15]};

/// Rounded after the product and after the sum, as bitsandbytes does.
__device__ inline float scale_of(float value, float scale_of_scales, float offset) {
  return __fadd_rn(__fmul_rn(value, scale_of_scales), offset);
}

/// The part of a matrix that is expanded.
struct Nf4Part {
  std::int64_t first_row = 0, first_column = 0;
  std::int64_t n_columns = 0;
  std::uint32_t n_items = 0;  // of kN neighbouring columns
  FastDivide items_per_row;
};

/// target (rows, n_columns). A thread expands kN codes at a time: eight if each row of the part begins at a multiple of
/// eight and has whole eights, otherwise one.
template <typename T, int kN>
__global__ void __launch_bounds__(kThreads) expand_matrix(MatrixInNf4 matrix, Nf4Part part, T* target) {
  __shared__ float values[16];  // not in constant memory: the threads of a warp read different entries
  if (threadIdx.x < 16) values[threadIdx.x] = kValues[threadIdx.x];
  __syncthreads();
  const float offset = *matrix.offset;
  for (std::uint32_t item = blockIdx.x * kThreads + threadIdx.x; item < part.n_items; item += gridDim.x * kThreads) {
    const std::uint32_t row = part.items_per_row.quotient(item);
    const std::int64_t column = std::int64_t{kN} * part.items_per_row.remainder(item, row);
    const std::int64_t element = (part.first_row + row) * matrix.in_features + part.first_column + column;
    const std::int64_t block = element / kNf4Block;  // of all kN, since both sizes are powers of two
    const float scale = scale_of(matrix.scale_values[matrix.scale_codes[block]],
                                 matrix.scales_of_scales[block / kNf4ScaleBlock], offset);
    std::uint32_t codes = 0;
    if constexpr (kN == 1)
      codes = element % 2 == 0 ? matrix.codes[element / 2] : matrix.codes[element / 2] << 4;
    else
      codes = *reinterpret_cast<const std::uint32_t*>(matrix.codes + element / 2);
    Floats<kN> weights;
#pragma unroll
    for (int i = 0; i < kN; ++i)  // the first of two codes is in the upper half of a byte
      weights[i] = values[codes >> (8 * (i / 2) + (i % 2 == 0 ? 4 : 0)) & 15u] * scale;
    store_floats(target + row * part.n_columns + column, weights);
  }
}

struct TiledProduct {
  std::int64_t tile = 0;
  std::unique_ptr<PlannedProduct> full, rest;  // `rest` is null if there is none
};

class CudaNf4Matmul final : public CudaOp<Nf4MatmulDescription> {
 public:
  CudaNf4Matmul(const Nf4MatmulDescription& d, const CudaContext& context);

  OpMemoryRequirements memory_requirements() const override { return requirements_; }
  std::string describe() const override {
    return fmt::format("{}: cuBLASLt, forward {} in tiles of {} rows{}", text(d_), forward_.full->algorithm(),
                       forward_.tile,
                       data_.full ? fmt::format("; data gradient in tiles of {} columns", data_.tile) : "");
  }
  void run_forward(const Forward& args, const OpMemory& memory, Stream& stream) override;
  void run_backward(const Backward& args, const OpMemory& memory, Stream& stream) override;

 private:
  template <typename Make>
  TiledProduct tiled(std::int64_t total, std::int64_t other, const Make& make) const;
  void expand(const std::byte* weight, const float* scale_values, std::int64_t first_row, std::int64_t rows,
              std::int64_t first_column, std::int64_t columns, void* tile, Stream& stream) const;

  Nf4Layout layout_;
  std::int64_t out_;
  TiledProduct forward_, data_;
  OpMemoryRequirements requirements_;
  std::size_t tile_at_ = 0, product_at_ = 0;
};

template <typename Make>
TiledProduct CudaNf4Matmul::tiled(std::int64_t total, std::int64_t other, const Make& make) const {
  const std::int64_t row_bytes = other * static_cast<std::int64_t>(size_bytes(d_.dtype));
  const std::int64_t fits = kTileBytes * context_.multiprocessors / row_bytes / kMultiple * kMultiple;
  TiledProduct out{.tile = std::min(total, std::max(fits, kMultiple)), .full = nullptr, .rest = nullptr};
  out.full = make(out.tile);
  if (const std::int64_t rest = total % out.tile; rest != 0) out.rest = make(rest);
  return out;
}

CudaNf4Matmul::CudaNf4Matmul(const Nf4MatmulDescription& d, const CudaContext& context)
    : PlannedOp(d, context), layout_(Nf4Layout::of(d.matrices, d.in_features)), out_(d.out_features()) {
  const auto plan = [&](ProductDescription product) {
    product.d_dtype = d.dtype;
    return plan_product(d, product, context);
  };
  forward_ = tiled(out_, d.in_features, [&](std::int64_t n) {
    return plan({.rows = d.rows,
                 .columns = n,
                 .inner = d.in_features,
                 .b_is_transposed = true,
                 .d_stride = out_,
                 .bias = d.bias});
  });
  const bool has_gradient = d.input_gradient && !d.inference;
  if (has_gradient)
    data_ = tiled(d.in_features, out_, [&](std::int64_t n) {
      return plan({.rows = d.rows, .columns = n, .inner = out_, .d_stride = d.in_features});
    });
  std::size_t product_bytes = 0;
  for (const TiledProduct* tiled : {&forward_, &data_})
    for (const auto* product : {&tiled->full, &tiled->rest})
      if (*product) product_bytes = std::max(product_bytes, (*product)->workspace_bytes());
  const std::int64_t tile = std::max(forward_.tile * d.in_features, data_.tile * out_);
  WorkspacePlan workspace;
  product_at_ = workspace.take(product_bytes);
  tile_at_ = workspace.take(static_cast<std::size_t>(tile) * size_bytes(d.dtype));
  requirements_.forward_workspace_bytes = workspace.size_bytes();
  if (has_gradient) requirements_.backward_workspace_bytes = workspace.size_bytes();
}

void CudaNf4Matmul::expand(const std::byte* weight, const float* scale_values, std::int64_t first_row,
                           std::int64_t rows, std::int64_t first_column, std::int64_t columns, void* tile,
                           Stream& stream) const {
  for (const Nf4Matrix& m : layout_.matrices) {
    const std::int64_t begin = std::max(first_row, m.first_row), end = std::min(first_row + rows, m.first_row + m.rows);
    if (begin >= end) continue;
    const MatrixInNf4 matrix{.codes = reinterpret_cast<const std::uint8_t*>(weight + m.codes),
                             .scale_codes = reinterpret_cast<const std::uint8_t*>(weight + m.scale_codes),
                             .scales_of_scales = reinterpret_cast<const float*>(weight + m.scales_of_scales),
                             .offset = reinterpret_cast<const float*>(weight + m.offset),
                             .scale_values = scale_values,
                             .in_features = d_.in_features};
    const bool by_eights = (d_.in_features | first_column | columns) % kCodes == 0;
    const std::int64_t in_row = by_eights ? columns / kCodes : columns, n_items = (end - begin) * in_row;
    const Nf4Part part{.first_row = begin - m.first_row,
                       .first_column = first_column,
                       .n_columns = columns,
                       .n_items = static_cast<std::uint32_t>(n_items),
                       .items_per_row = FastDivide(static_cast<std::uint32_t>(in_row))};
    Grid grid = grid_of_items(n_items, context_);
    grid.work = {.kind = by_eights ? "packs" : "elements",
                 .bytes = (0.52 + static_cast<double>(size_bytes(d_.dtype))) * moved_bytes(1, end - begin, columns, 1)};
    dispatch(d_.dtype, [&]<typename T>(T*) {
      launch(by_eights ? expand_matrix<T, kCodes> : expand_matrix<T, 1>, grid, stream, matrix, part,
             static_cast<T*>(tile) + (begin - first_row) * columns);
    });
  }
}

void CudaNf4Matmul::run_forward(const Forward& args, const OpMemory& memory, Stream& stream) {
  void* const tile = at(memory.workspace, tile_at_);
  const auto from = [&](const void* data, std::int64_t element) -> const void* {
    return data == nullptr
               ? nullptr
               : static_cast<const std::byte*>(data) + static_cast<std::size_t>(element) * size_bytes(d_.dtype);
  };
  for (std::int64_t row = 0; row < out_; row += forward_.tile) {
    const std::int64_t n = std::min(forward_.tile, out_ - row);
    expand(args.weight, args.scale_values, row, n, 0, d_.in_features, tile, stream);
    (n < forward_.tile ? forward_.rest : forward_.full)
        ->run({.a = args.x, .b = tile, .bias = from(args.bias, row), .d = const_cast<void*>(from(args.y, row))},
              at(memory.workspace, product_at_), stream);
  }
}

void CudaNf4Matmul::run_backward(const Backward& args, const OpMemory& memory, Stream& stream) {
  require(!d_.inference, ErrorCode::internal, "{} was planned for inference, and backward was called", text(d_));
  if (!d_.input_gradient || args.dx_mode == GradientMode::skip) return;
  void* const tile = at(memory.workspace, tile_at_);
  for (std::int64_t column = 0; column < d_.in_features; column += data_.tile) {
    const std::int64_t n = std::min(data_.tile, d_.in_features - column);
    expand(args.weight, args.scale_values, 0, out_, column, n, tile, stream);
    (n < data_.tile ? data_.rest : data_.full)
        ->run({.a = args.dy,
               .b = tile,
               .d = static_cast<std::byte*>(args.dx) + static_cast<std::size_t>(column) * size_bytes(d_.dtype),
               .accumulate = args.dx_mode == GradientMode::accumulate},
              at(memory.workspace, product_at_), stream);
  }
}

}  // namespace

std::unique_ptr<Nf4Matmul> make_nf4_matmul(const Nf4MatmulDescription& d, const CudaContext& context) {
  dispatch(d.dtype, [](auto*) {});
  return std::make_unique<CudaNf4Matmul>(d, context);
}

}  // namespace lockstep::cuda

// Matmul in fp8 (lockstep/ops/matmul.h). Before Blackwell, cuBLASLt multiplies fp8 only if the summed dimension of both
// operands is contiguous, so the backward pass needs transposed copies:
//   y (M, out) = x8 (M, in) * w8 (out, in)^T;  dx (M, in) = dy8 (M, out) * w8^T (in, out)^T;
//   dweight (out, in) = dy8^T (out, M) * x8^T (in, M)^T
// Launches besides the products: one that finds the greatest magnitudes, and one that makes all copies; in the backward
// pass, the magnitudes of x and weight are those that forward has found.
// Bytes moved besides the products, for each element: forward 5 of x and weight; backward 6 of dy (read twice, two
// copies) and 3 of x and weight. Without a pass for the magnitudes, which the kernel before could find, it is 2 less.
#include <cuda_fp8.h>

#include <algorithm>
#include <array>
#include <memory>

#include "kernels/cuda/base/block_sum.h"
#include "kernels/cuda/base/conversions.h"
#include "kernels/cuda/base/items.h"
#include "kernels/cuda/base/row_major_layout.h"
#include "kernels/cuda/base/rows.h"
#include "kernels/cuda/matmul_bare.h"
#include "lockstep/fp8.h"
#include "lockstep/workspace.h"

namespace lockstep::cuda {
namespace {

constexpr unsigned kThreads = 256;
constexpr int kBlocksPerMultiprocessor = 4;  // with more, the compiler spills on 10.0 and 12.0
constexpr int kWidth = 8;                    // numbers of a thread in a row
constexpr int kHeight = 4;                   // rows of a thread: their bytes in a column make a word
constexpr std::size_t kScaleBytes = 16;      // each scale is aligned to that
constexpr int kTileColumns = 64, kTileRows = 128;

/// A tensor (rows, columns), both multiples of 16, and its copies in fp8. Null: not needed.
struct Fp8Tensor {
  const Bfloat16* values = nullptr;
  std::int64_t rows = 0, columns = 0;
  Fp8Format format{};
  std::uint32_t* greatest = nullptr;  // (blocks of find_greatest) bits of magnitudes
  float* inverse_scale = nullptr;
  std::uint8_t* copy = nullptr;        // (rows, columns)
  std::uint8_t* transposed = nullptr;  // (columns, rows)
};

/// blockIdx.y selects the tensor.
struct Fp8Tensors {
  std::array<Fp8Tensor, 3> tensors{};
  unsigned n_greatest = 0;  // of each tensor
};

__global__ void __launch_bounds__(kThreads, kBlocksPerMultiprocessor)
    find_greatest(const __grid_constant__ Fp8Tensors all) {
  const Fp8Tensor& t = all.tensors[blockIdx.y];
  std::uint32_t greatest = 0;
  for (std::int64_t i = first_item(); i < t.rows * t.columns / kWidth; i += item_stride()) {
    const auto pack = load_vector<kWidth>(t.values + i * kWidth);
#pragma unroll
    for (const std::uint32_t word : pack.words) {
      const std::uint32_t low = word & 0x7fff, high = word >> 16 & 0x7fff, of_both = low > high ? low : high;
      greatest = of_both > greatest ? of_both : greatest;
    }
  }
  greatest = block_max<kThreads>(greatest);
  if (threadIdx.x == 0) t.greatest[blockIdx.x] = greatest;
}

/// Two numbers within the format, the first in the lower byte.
__device__ inline std::uint32_t pack_two_in_fp8(float low, float high, bool is_e5m2) {
  return __nv_cvt_float2_to_fp8x2({low, high}, __NV_SATFINITE, is_e5m2 ? __NV_E5M2 : __NV_E4M3);
}

__global__ void __launch_bounds__(kThreads, kBlocksPerMultiprocessor)
    copy_in_fp8(const __grid_constant__ Fp8Tensors all) {
  const Fp8Tensor& t = all.tensors[blockIdx.y];
  std::uint32_t greatest = 0;
  for (unsigned i = threadIdx.x; i < all.n_greatest; i += kThreads)
    greatest = t.greatest[i] > greatest ? t.greatest[i] : greatest;
  const float scale = fp8_scale(block_max<kThreads>(greatest), t.format);
  if (blockIdx.x == 0 && threadIdx.x == 0) *t.inverse_scale = 1 / scale;
  const bool is_e5m2 = t.format.mantissa_bits == kE5m2.mantissa_bits;

  // Of each column, words of four rows. Columns begin in different banks.
  __shared__ std::uint32_t words[kTileColumns][kTileRows / kHeight + 1];
  const unsigned left = threadIdx.x % (kTileColumns / kWidth) * kWidth, top = threadIdx.x / (kTileColumns / kWidth);
  const std::int64_t tiles_in_row = (t.columns + kTileColumns - 1) / kTileColumns;
  const std::int64_t n_tiles = (t.rows + kTileRows - 1) / kTileRows * tiles_in_row;
  for (std::int64_t tile = blockIdx.x; tile < n_tiles; tile += gridDim.x) {
    const std::int64_t first_row = tile / tiles_in_row * kTileRows, first_column = tile % tiles_in_row * kTileColumns;
    const std::int64_t row = first_row + top * kHeight, column = first_column + left;
    if (row < t.rows && column < t.columns) {
      std::uint32_t of_row[kHeight][2];
#pragma unroll
      for (int r = 0; r < kHeight; ++r) {
        const Vector<Bfloat16, kWidth> v = load_vector<kWidth>(t.values + (row + r) * t.columns + column);
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int j = 4 * half;
          of_row[r][half] = pack_two_in_fp8(scale * v[j], scale * v[j + 1], is_e5m2) |
                            pack_two_in_fp8(scale * v[j + 2], scale * v[j + 3], is_e5m2) << 16;
        }
        if (t.copy != nullptr)
          *reinterpret_cast<uint2*>(t.copy + (row + r) * t.columns + column) = {of_row[r][0], of_row[r][1]};
      }
#pragma unroll
      for (int c = 0; c < kWidth; ++c) {
        std::uint32_t word = 0;
#pragma unroll
        for (int r = 0; r < kHeight; ++r) word |= (of_row[r][c / 4] >> (8 * (c % 4)) & 0xff) << (8 * r);
        words[left + c][top] = word;
      }
    }
    if (t.transposed == nullptr) continue;
    __syncthreads();
    // A thread stores 16 rows of a column.
    constexpr unsigned kInColumn = kTileRows / 16;
    for (unsigned i = threadIdx.x; i < kTileColumns * kInColumn; i += kThreads) {
      const std::int64_t to_column = first_column + i / kInColumn, to_row = first_row + i % kInColumn * 16;
      const std::uint32_t* const from = words[i / kInColumn] + i % kInColumn * 4;
      if (to_column < t.columns && to_row < t.rows)
        *reinterpret_cast<uint4*>(t.transposed + to_column * t.rows + to_row) = {from[0], from[1], from[2], from[3]};
    }
    __syncthreads();
  }
}

class CudaMatmulInFp8 final : public CudaOp<MatmulDescription> {
 public:
  CudaMatmulInFp8(const MatmulDescription& d, const CudaContext& context);

  OpMemoryRequirements memory_requirements() const override { return requirements_; }
  std::string describe() const override;
  std::shared_ptr<const ParameterLayout> weight_layout() const override { return layout_; }
  void run_forward(const Forward& args, const OpMemory& memory, Stream& stream) override;
  void run_backward(const Backward& args, const OpMemory& memory, Stream& stream) override;

 private:
  enum Operand : std::size_t { kX, kWeight, kDy };
  ColumnSums bias_sums() const { return {d_.rows, d_.out_features, d_.dtype}; }
  /// Without copies.
  Fp8Tensor tensor(Operand operand, const void* values, const OpMemory& memory) const;
  template <typename Kernel>
  void launch_for(Kernel* kernel, std::initializer_list<Fp8Tensor> tensors, Stream& stream) const;

  std::shared_ptr<const ParameterLayout> layout_;
  std::unique_ptr<PlannedProduct> forward_, data_gradient_, weight_gradient_;  // null if not computed
  unsigned n_greatest_;
  OpMemoryRequirements requirements_;
  struct Offsets {
    std::size_t product = 0, scales = 0, x = 0, weight = 0, greatest_of_dy = 0, dy = 0, transposed_dy = 0;
    std::size_t greatest = 0;  // of x, then of the weight, in memory.saved, or in the workspace in inference
  } at_;
};

CudaMatmulInFp8::CudaMatmulInFp8(const MatmulDescription& d, const CudaContext& context)
    : PlannedOp(d, context),
      layout_(row_major_layout(d.weight_layout, d.out_features * d.in_features, "matmul in fp8")) {
  const std::int64_t rows = d.rows, in = d.in_features, out = d.out_features;
  const auto plan = [&](ProductDescription product) {
    product.dtype = DType::e4m3;
    product.b_is_transposed = true;
    return plan_product(product, context);
  };
  forward_ = plan({.rows = rows, .columns = out, .inner = in, .d_dtype = d.dtype, .bias = d.bias});
  if (!d.inference)
    weight_gradient_ =
        plan({.rows = out, .columns = in, .inner = rows, .a_is_e5m2 = true, .d_dtype = d.gradient_dtype});
  if (!d.inference && d.input_gradient)
    data_gradient_ = plan({.rows = rows, .columns = in, .inner = out, .a_is_e5m2 = true, .d_dtype = d.dtype});

  const auto bytes = [](std::int64_t n, std::int64_t m) { return static_cast<std::size_t>(n * m); };
  const std::size_t most = std::max({bytes(rows, in), bytes(rows, out), bytes(out, in)});
  n_greatest_ = blocks_for(most / kWidth, kThreads, context.blocks(8));
  const std::size_t greatest_bytes = n_greatest_ * sizeof(std::uint32_t);
  std::size_t product_bytes = d.bias && !d.inference ? sum_columns_workspace_bytes(bias_sums()) : 0;
  for (const auto* const product : {&forward_, &data_gradient_, &weight_gradient_})
    if (*product) product_bytes = std::max(product_bytes, (*product)->workspace_bytes());
  WorkspacePlan workspace;
  at_.product = workspace.take(product_bytes);
  at_.scales = workspace.take(3 * kScaleBytes);
  at_.x = workspace.take(bytes(rows, in));
  at_.weight = workspace.take(bytes(out, in));
  if (d.inference) at_.greatest = workspace.take(2 * greatest_bytes);
  requirements_.forward_workspace_bytes = workspace.size_bytes();
  if (d.inference) return;
  requirements_.saved_bytes = 2 * greatest_bytes;
  at_.greatest_of_dy = workspace.take(greatest_bytes);
  at_.dy = workspace.take(bytes(rows, out));
  at_.transposed_dy = workspace.take(bytes(rows, out));
  requirements_.backward_workspace_bytes = workspace.size_bytes();
}

std::string CudaMatmulInFp8::describe() const {
  std::string out =
      fmt::format("matmul ({}, {}) -> {}{}, fp8, weights {}: cuBLASLt, forward {}", d_.rows, d_.in_features,
                  d_.out_features, d_.bias ? " with bias" : "", layout_->describe(), forward_->algorithm());
  if (data_gradient_) out += "; data gradient " + data_gradient_->algorithm();
  if (weight_gradient_) out += "; weight gradient " + weight_gradient_->algorithm();
  return out;
}

Fp8Tensor CudaMatmulInFp8::tensor(Operand operand, const void* values, const OpMemory& memory) const {
  const bool is_dy = operand == kDy;
  std::uint32_t* const kept = at<std::uint32_t>(d_.inference ? memory.workspace : memory.saved, at_.greatest);
  return {.values = static_cast<const Bfloat16*>(values),
          .rows = operand == kWeight ? d_.out_features : d_.rows,
          .columns = is_dy ? d_.out_features : d_.in_features,
          .format = is_dy ? kE5m2 : kE4m3,
          .greatest = is_dy ? at<std::uint32_t>(memory.workspace, at_.greatest_of_dy) : kept + operand * n_greatest_,
          .inverse_scale = at<float>(memory.workspace, at_.scales + operand * kScaleBytes)};
}

/// For the tensors that have copies.
template <typename Kernel>
void CudaMatmulInFp8::launch_for(Kernel* kernel, std::initializer_list<Fp8Tensor> tensors, Stream& stream) const {
  Fp8Tensors all{.n_greatest = n_greatest_};
  Grid grid{.blocks = n_greatest_, .threads = kThreads, .blocks_y = 0, .work = {.kind = "packs"}};
  const bool copies = kernel == &copy_in_fp8;
  for (const Fp8Tensor& t : tensors) {
    const int n_copies = (t.copy != nullptr ? 1 : 0) + (t.transposed != nullptr ? 1 : 0);
    if (n_copies == 0) continue;
    all.tensors[grid.blocks_y++] = t;
    grid.work.bytes += moved_bytes(1, t.rows, t.columns, sizeof(Bfloat16)) +
                       (copies ? moved_bytes(n_copies, t.rows, t.columns, 1) : 0);
  }
  launch(kernel, grid, stream, all);
}

void CudaMatmulInFp8::run_forward(const Forward& args, const OpMemory& memory, Stream& stream) {
  Fp8Tensor x = tensor(kX, args.x, memory), weight = tensor(kWeight, args.weight, memory);
  x.copy = at<std::uint8_t>(memory.workspace, at_.x);
  weight.copy = at<std::uint8_t>(memory.workspace, at_.weight);
  launch_for(find_greatest, {x, weight}, stream);
  launch_for(copy_in_fp8, {x, weight}, stream);
  forward_->run({.a = x.copy,
                 .b = weight.copy,
                 .bias = args.bias,
                 .d = args.y,
                 .a_scale = x.inverse_scale,
                 .b_scale = weight.inverse_scale},
                at(memory.workspace, at_.product), stream);
}

void CudaMatmulInFp8::run_backward(const Backward& args, const OpMemory& memory, Stream& stream) {
  require(!d_.inference, ErrorCode::internal, "a matmul in fp8 was planned for inference, and backward was called");
  const bool wants_dx = d_.input_gradient && args.dx_mode != GradientMode::skip;
  const bool wants_parameters = args.parameter_mode != GradientMode::skip;
  Fp8Tensor x = tensor(kX, args.x, memory), weight = tensor(kWeight, args.weight, memory);
  Fp8Tensor dy = tensor(kDy, args.dy, memory);
  if (wants_dx) dy.copy = at<std::uint8_t>(memory.workspace, at_.dy);
  if (wants_dx) weight.transposed = at<std::uint8_t>(memory.workspace, at_.weight);
  if (wants_parameters) dy.transposed = at<std::uint8_t>(memory.workspace, at_.transposed_dy);
  if (wants_parameters) x.transposed = at<std::uint8_t>(memory.workspace, at_.x);
  launch_for(find_greatest, {dy}, stream);
  launch_for(copy_in_fp8, {dy, x, weight}, stream);
  void* const workspace = at(memory.workspace, at_.product);
  if (wants_parameters) {
    const bool accumulate = args.parameter_mode == GradientMode::accumulate;
    weight_gradient_->run({.a = dy.transposed,
                           .b = x.transposed,
                           .d = args.dweight,
                           .accumulate = accumulate,
                           .a_scale = dy.inverse_scale,
                           .b_scale = x.inverse_scale},
                          workspace, stream);
    if (d_.bias) sum_columns(bias_sums(), args.dy, {args.dbias, d_.gradient_dtype}, accumulate, workspace, stream);
  }
  if (wants_dx)
    data_gradient_->run({.a = dy.copy,
                         .b = weight.transposed,
                         .d = args.dx,
                         .accumulate = args.dx_mode == GradientMode::accumulate,
                         .a_scale = dy.inverse_scale,
                         .b_scale = weight.inverse_scale},
                        workspace, stream);
}

}  // namespace

std::unique_ptr<Matmul> make_matmul_in_fp8(const MatmulDescription& description, const CudaContext& context) {
  return std::make_unique<CudaMatmulInFp8>(description, context);
}

}  // namespace lockstep::cuda

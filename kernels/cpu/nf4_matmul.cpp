// Matmul with a weight in NF4 (lockstep/ops/nf4_matmul.h). Forward expands some rows of the weight at a time, as many
// as fit into the L2 cache, and multiplies x by them, which computes some columns of y. dx is computed from some
// columns of the weight at a time, so that each of its elements is one sum and is rounded once. bf16 is multiplied in
// bf16, or where the processor has no instructions for it in fp32 ("inner" below): x, dy and the results then exist in
// fp32 in the workspace.
#include <algorithm>
#include <memory>

#include "kernels/cpu/base/parallel.h"
#include "kernels/cpu/base/product.h"
#include "kernels/cpu/base/simd.h"
#include "kernels/cpu/base/widen.h"
#include "lockstep/ops/nf4_matmul.h"
#include "lockstep/workspace.h"

namespace lockstep::cpu {

/// A matrix in NF4, and the target of a part of it: `target` is (rows, n_columns), and begins with `first_row`.
template <typename E>
struct ExpandTask {
  using Element = E;
  const std::uint8_t *codes = nullptr, *scale_codes = nullptr;
  const float *scales_of_scales = nullptr, *scale_values = nullptr;
  float offset = 0;
  std::int64_t in_features = 0;
  std::int64_t first_row = 0, first_column = 0, n_columns = 0;
  E* target = nullptr;
};

}  // namespace lockstep::cpu

#define LOCKSTEP_KERNELS "kernels/cpu/nf4_matmul_kernels.h"
#include "kernels/cpu/base/each_isa.h"

namespace lockstep::cpu {
namespace {

constexpr std::int64_t kTileBytes = 512 * 1024;  // the part of a core's L2 cache for a tile
constexpr std::int64_t kMultiple = 64;           // rows and columns of a tile are multiples of this

std::string text(const Nf4MatmulDescription& d) {
  return fmt::format("matmul ({}, {}) -> {} in NF4{}{}", d.rows, d.in_features, d.out_features(),
                     d.bias ? " with bias" : "", d.dtype == DType::fp32 ? "" : fmt::format(", {}", name(d.dtype)));
}

class CpuNf4Matmul final : public CpuOp<Nf4MatmulDescription> {
 public:
  CpuNf4Matmul(const Nf4MatmulDescription& d, const CpuContext& context);

  OpMemoryRequirements memory_requirements() const override { return requirements_; }
  std::string describe() const override {
    return fmt::format("{}: {} in tiles of {} rows{}{}", text(d_), forward_.describe(), forward_.at_once(),
                       data_ ? fmt::format(", data gradient in tiles of {} columns", data_.at_once()) : "",
                       is_widened() ? "; multiplied in fp32" : "");
  }
  void run_forward(const Forward& args, const OpMemory& memory, Stream&) override;
  void run_backward(const Backward& args, const OpMemory& memory, Stream&) override;

 private:
  bool is_widened() const { return inner_ != d_.dtype; }
  std::size_t inner_bytes(std::int64_t n) const { return static_cast<std::size_t>(n) * size_bytes(inner_); }
  /// `make` makes a product for a number of rows or columns of the weight.
  template <typename Make>
  ChunkedProduct tiled(std::int64_t total, std::int64_t other, const Make& make) const;
  const void* inner(const void* data, std::int64_t n, void* workspace, std::size_t place) const;
  /// Expands rows and columns of the weight to the tile in the workspace.
  void expand(const std::byte* weight, const float* scale_values, Range rows, Range columns, void* workspace) const;
  template <typename E>
  void expand_as(const std::byte* weight, const float* scale_values, Range rows, Range columns, E* target) const;

  DType inner_;
  Nf4Layout layout_;
  std::int64_t out_;
  ChunkedProduct forward_, data_, data_adding_;
  OpMemoryRequirements requirements_;
  struct Places {
    std::size_t scratchpad = 0, tile = 0, x = 0, y = 0, bias = 0, dx = 0;
  } at_;
};

template <typename Make>
ChunkedProduct CpuNf4Matmul::tiled(std::int64_t total, std::int64_t other, const Make& make) const {
  const std::int64_t fits = kTileBytes / static_cast<std::int64_t>(inner_bytes(other)) / kMultiple * kMultiple;
  return {total, std::min(total, std::max(fits, kMultiple)), make};
}

CpuNf4Matmul::CpuNf4Matmul(const Nf4MatmulDescription& d, const CpuContext& context)
    : PlannedOp(d, context),
      inner_(product_type(d.dtype)),
      layout_(Nf4Layout::of(d.matrices, d.in_features)),
      out_(d.out_features()) {
  const std::int64_t rows = d.rows, in = d.in_features;
  forward_ = tiled(out_, in, [&](std::int64_t n) {
    return make_product({.a = {rows, in, inner_},
                         .b = {in, n, inner_, /*is_transposed=*/true},
                         .c = {.rows = rows, .columns = n, .dtype = inner_, .row_stride = out_},
                         .has_bias = d.bias},
                        context_);
  });
  const bool has_gradient = d.input_gradient && !d.inference;
  for (const bool adds : {false, true}) {
    if (!has_gradient || (adds && is_widened())) continue;
    (adds ? data_adding_ : data_) = tiled(in, out_, [&](std::int64_t n) {
      return make_product({.a = {rows, out_, inner_},
                           .b = {out_, n, inner_},
                           .c = {.rows = rows, .columns = n, .dtype = inner_, .row_stride = in},
                           .adds = adds},
                          context_);
    });
  }
  std::size_t scratchpad_bytes = forward_.workspace_bytes();
  std::int64_t tile = forward_.at_once() * in;
  for (const ChunkedProduct* product : {&data_, &data_adding_}) {
    if (!*product) continue;
    scratchpad_bytes = std::max(scratchpad_bytes, product->workspace_bytes());
    tile = std::max(tile, product->at_once() * out_);
  }
  WorkspacePlan workspace;
  at_.scratchpad = workspace.take(scratchpad_bytes);
  at_.tile = workspace.take(inner_bytes(tile));
  if (is_widened()) {
    at_.x = workspace.take(inner_bytes(rows * in));    // in backward, dx
    at_.y = workspace.take(inner_bytes(rows * out_));  // in backward, dy
    at_.bias = workspace.take(inner_bytes(out_));
  }
  requirements_.forward_workspace_bytes = workspace.size_bytes();
  if (!has_gradient) return;
  if (is_widened()) at_.dx = workspace.take(static_cast<std::size_t>(rows * in) * size_bytes(d.dtype));
  requirements_.backward_workspace_bytes = workspace.size_bytes();
}

const void* CpuNf4Matmul::inner(const void* data, std::int64_t n, void* workspace, std::size_t place) const {
  if (!is_widened() || data == nullptr) return data;
  float* const wide = at<float>(workspace, place);
  widen(static_cast<const Bf16*>(data), wide, n, context_);
  return wide;
}

template <typename E>
void CpuNf4Matmul::expand_as(const std::byte* weight, const float* scale_values, Range rows, Range columns,
                             E* target) const {
  using Task = ExpandTask<E>;
  const std::int64_t width = columns.end - columns.begin;
  for (const Nf4Matrix& matrix : layout_.matrices) {
    const Range mine{std::max(rows.begin, matrix.first_row) - matrix.first_row,
                     std::min(rows.end, matrix.first_row + matrix.rows) - matrix.first_row};
    if (mine.begin >= mine.end) continue;
    const Task task{.codes = reinterpret_cast<const std::uint8_t*>(weight + matrix.codes),
                    .scale_codes = reinterpret_cast<const std::uint8_t*>(weight + matrix.scale_codes),
                    .scales_of_scales = reinterpret_cast<const float*>(weight + matrix.scales_of_scales),
                    .scale_values = scale_values,
                    .offset = *reinterpret_cast<const float*>(weight + matrix.offset),
                    .in_features = d_.in_features,
                    .first_row = mine.begin,
                    .first_column = columns.begin,
                    .n_columns = width,
                    .target = target + (matrix.first_row + mine.begin - rows.begin) * width};
    const std::int64_t n = mine.end - mine.begin;
    run_ranges(part_count(context_, n * width * 8), n, [&](Range range) {
      LOCKSTEP_DISPATCH(expand_rows<Task>)(task, {mine.begin + range.begin, mine.begin + range.end});
    });
  }
}

void CpuNf4Matmul::expand(const std::byte* weight, const float* scale_values, Range rows, Range columns,
                          void* workspace) const {
  // Rounded to the type of x, regardless of the type in which it is multiplied.
  if (is_widened()) {
    with_elements(DType::fp32, [&](auto) {
      float* const wide = at<float>(workspace, at_.tile);
      expand_as(weight, scale_values, rows, columns, wide);
      const std::int64_t n = (rows.end - rows.begin) * (columns.end - columns.begin);
      for (std::int64_t i = 0; i < n; ++i) wide[i] = to_float(from_float<Bf16>(wide[i]));
    });
    return;
  }
  with_elements(inner_, [&](auto element) {
    expand_as(weight, scale_values, rows, columns, at<decltype(element)>(workspace, at_.tile));
  });
}

void CpuNf4Matmul::run_forward(const Forward& args, const OpMemory& memory, Stream&) {
  void* const workspace = memory.workspace;
  const void* const x = inner(args.x, d_.rows * d_.in_features, workspace, at_.x);
  const void* const bias = inner(args.bias, out_, workspace, at_.bias);
  void* const y = is_widened() ? at(workspace, at_.y) : args.y;
  forward_.for_each([&](Range rows, Product& product) {
    expand(args.weight, args.scale_values, rows, {0, d_.in_features}, workspace);
    product.execute({.a = x,
                     .b = at(workspace, at_.tile),
                     .bias = bias == nullptr ? nullptr : static_cast<const std::byte*>(bias) + inner_bytes(rows.begin),
                     .c = static_cast<std::byte*>(y) + inner_bytes(rows.begin),
                     .workspace = at(workspace, at_.scratchpad)});
  });
  if (is_widened()) narrow(static_cast<const float*>(y), static_cast<Bf16*>(args.y), d_.rows * out_, context_);
}

void CpuNf4Matmul::run_backward(const Backward& args, const OpMemory& memory, Stream&) {
  require(!d_.inference, ErrorCode::internal, "{} was planned for inference, and backward was called", text(d_));
  if (!d_.input_gradient || args.dx_mode == GradientMode::skip) return;
  void* const workspace = memory.workspace;
  const bool adds = args.dx_mode == GradientMode::accumulate;
  const void* const dy = inner(args.dy, d_.rows * out_, workspace, at_.y);
  void* const dx = is_widened() ? at(workspace, at_.x) : args.dx;
  (adds && !is_widened() ? data_adding_ : data_).for_each([&](Range columns, Product& product) {
    expand(args.weight, args.scale_values, {0, out_}, columns, workspace);
    product.execute({.a = dy,
                     .b = at(workspace, at_.tile),
                     .c = static_cast<std::byte*>(dx) + inner_bytes(columns.begin),
                     .workspace = at(workspace, at_.scratchpad)});
  });
  if (!is_widened()) return;
  const std::int64_t n = d_.rows * d_.in_features;
  void* const narrowed = adds ? at(workspace, at_.dx) : args.dx;
  narrow(static_cast<const float*>(dx), static_cast<Bf16*>(narrowed), n, context_);
  if (adds) add_into(d_.dtype, args.dx, narrowed, static_cast<std::size_t>(n), context_);
}

}  // namespace

std::unique_ptr<Nf4Matmul> make_nf4_matmul(const Nf4MatmulDescription& d, const CpuContext& context) {
  require_float_or_bf16(d.dtype, "a matmul in NF4");
  return std::make_unique<CpuNf4Matmul>(d, context);
}

}  // namespace lockstep::cpu

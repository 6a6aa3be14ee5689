// Convolution as matrix products (base/product.h), in nhwc. A row of the left matrix contains what the window covers at
// one position ("im2col"). Some rows are gathered at a time, so that they are multiplied while they are in the cache;
// for a 1x1 window with stride 1 the tensor itself is the matrix.
//
//   forward          y (N H' W', K)       = x gathered (N H' W', R S C) * w (R S C, K)
//   data gradient    dx's plane (., C)    = dy gathered (., taps K) * w (taps K, C), for each of stride^2 planes
//   weight gradient  dw's taps (taps C, K) = sum over some rows at a time of x gathered (., taps C)^T * dy (., K)
// A plane is the set of pixels with the same (row, column) modulo the stride; the same taps of the window reach all of
// them.
//
// Measured, fp32, 1 thread, Sapphire Rapids, oneDNN 3.2's convolution in nhwc against this, forward, data and weight
// gradient: few pixels with many weights are faster, 8x8x256 to 512 with stride 2, batch 32: 16.0 to 12.4, 20.0 to
// 14.0, 21.9 to 13.7 ms; 2x2x512, batch 16: 9.0 to 5.7, 12.5 to 7.7, 13.4 to 6.6 ms. Large images are slower because of
// the gathering, 32x32x64, batch 32: 18.9 to 22.3, 19.1 to 23.5, 22.3 to 29.9 ms.
//
// Sums are fp32. With oneDNN, their order depends on the shape and the number of threads.
#include <algorithm>
#include <cstring>
#include <vector>

#include "kernels/cpu/base/parallel.h"
#include "kernels/cpu/base/product.h"
#include "kernels/cpu/base/widen.h"
#include "kernels/cpu/conv2d_bare.h"
#include "kernels/cpu/conv2d_rows.h"
#include "lockstep/workspace.h"

namespace lockstep::cpu {
namespace {

// Bytes of gathered rows per thread, and a minimum number of rows, with which the time to read all weights in each
// product does not matter.
constexpr std::int64_t kGatheredBytes = std::int64_t{1} << 19, kLeastRows = 256;
// The taps of the weight gradient are computed in groups of at most this many bytes, or one by one. Each group is
// summed over all rows before the next.
constexpr std::int64_t kSumBytes = std::int64_t{1} << 19;

/// The number of rows to gather at a time, for rows of this many bytes.
std::int64_t rows_at_once(std::int64_t total, std::int64_t row_bytes, const CpuContext& context) {
  const std::int64_t wanted = std::max(kLeastRows, kGatheredBytes / row_bytes) * std::max(1, context.threads);
  const std::int64_t n_chunks = (total + wanted - 1) / wanted, rows = (total + n_chunks - 1) / n_chunks;
  if (kHasOnednn) return rows;
  // Rounded up to whole blocks of the weight gradient's sums, so that their order does not depend on the number of
  // threads.
  return std::min(total, (rows + kOwnProductBlock - 1) / kOwnProductBlock * kOwnProductBlock);
}

class MatmulConvolution final : public BareConvolution {
 public:
  MatmulConvolution(const Conv2dDescription& d, Direction direction, const CpuContext& context);

  std::shared_ptr<const BlockedLayout> weight_layout() const override { return layout_; }
  std::size_t workspace_bytes() const override { return bytes_; }
  std::string describe() const override;

  void run(const void* from, const void* weight, void* to, void* workspace) override;
  void weight_gradient(const void* x, const void* dy, float* dweight, bool accumulate, void* workspace) override;

 private:
  /// For forward and the data gradient: computes positions of the output from taps of the window.
  struct TapsProduct {
    Gather gather;
    std::vector<std::int64_t> taps{};  // their positions in the window
    ChunkedProduct matmul{};
    bool has_neighbouring_taps() const { return taps.back() - taps.front() + 1 == std::ssize(taps); }
  };

  /// The layout of weights or their gradient as matrices (c, k), or (k, c), one for each tap.
  BlockedLayout tap_matrices(bool over_k) const;
  std::vector<TapsProduct> forward_products() const;
  std::vector<TapsProduct> data_products() const;
  void plan_run(const Image& output, bool over_k, std::vector<TapsProduct> products);
  void plan_weight_gradient();
  void run_product(TapsProduct& product, const void* from, const std::byte* weights, std::byte* to, void* workspace);
  /// Returns rows of a matrix, either in place or gathered into the workspace.
  const void* rows_of(const Gather& gather, const void* from, Range rows, void* workspace) const;
  std::int64_t bytes(std::int64_t n_elements) const { return n_elements * element_bytes_; }

  Conv2dDescription d_;
  CpuContext context_;
  Image x_, y_, output_;  // output_: the rows that a run writes
  std::int64_t tap_elements_;
  std::int64_t element_bytes_;
  std::shared_ptr<const BlockedLayout> layout_;
  std::unique_ptr<Reorder> weights_in_, dweight_out_;  // null if the layouts agree
  std::vector<TapsProduct> products_;                  // the products of a run
  std::vector<Gather> taps_;                           // for the weight gradient: some taps at a time
  ChunkedProduct taps_matmul_;
  std::size_t bytes_ = 0;
  struct {
    std::size_t weights = 0, packed = 0, rows = 0, scattered = 0, dweight = 0, outer = 0, scratchpad = 0;
  } at_;
};

MatmulConvolution::MatmulConvolution(const Conv2dDescription& d, Direction direction, const CpuContext& context)
    : d_(d),
      context_(context),
      x_{d.x[1], d.x[2], d.x[3]},
      y_{d.y()[1], d.y()[2], d.out_channels},
      tap_elements_(d.x[3] * d.out_channels),
      element_bytes_(static_cast<std::int64_t>(size_bytes(d.dtype))) {
  const BlockedLayout matrices = tap_matrices(false);
  layout_ = as_blocked_layout(d.weight_layout, matrices.sizes());
  if (!layout_) layout_ = std::make_shared<BlockedLayout>(matrices);
  switch (direction) {
    case Direction::forward:
      plan_run(y_, false, forward_products());
      break;
    case Direction::data_gradient:
      plan_run(x_, true, data_products());
      break;
    case Direction::weight_gradient:
      plan_weight_gradient();
      break;
  }
}

BlockedLayout MatmulConvolution::tap_matrices(bool over_k) const {
  return {{y_.channels, x_.channels, d_.kernel_size, d_.kernel_size}, over_k ? "cdab" : "cdba"};
}

std::vector<MatmulConvolution::TapsProduct> MatmulConvolution::forward_products() const {
  const Conv2dDescription& d = d_;
  TapsProduct product{.gather = {.from = x_, .positions = {.height = y_.height, .width = y_.width}, .step = d.stride}};
  for (std::int64_t tap = 0; tap < d.kernel_size * d.kernel_size; ++tap) {
    add_tap(product.gather.runs, tap / d.kernel_size - d.padding, tap % d.kernel_size - d.padding);
    product.taps.push_back(tap);
  }
  std::vector<TapsProduct> products;
  products.push_back(std::move(product));
  return products;
}

std::vector<MatmulConvolution::TapsProduct> MatmulConvolution::data_products() const {
  const Conv2dDescription& d = d_;
  std::vector<TapsProduct> products;
  for (std::int64_t row = 0; row < std::min<std::int64_t>(d.stride, x_.height); ++row)
    for (std::int64_t column = 0; column < std::min<std::int64_t>(d.stride, x_.width); ++column) {
      const Plane plane{.row = row,
                        .column = column,
                        .stride = d.stride,
                        .height = (x_.height - row + d.stride - 1) / d.stride,
                        .width = (x_.width - column + d.stride - 1) / d.stride};
      TapsProduct product{.gather = {.from = y_, .positions = plane}};
      for (std::int64_t tap = 0; tap < d.kernel_size * d.kernel_size; ++tap) {
        const std::int64_t r = row + d.padding - tap / d.kernel_size, s = column + d.padding - tap % d.kernel_size;
        if (r % d.stride != 0 || s % d.stride != 0) continue;
        add_tap(product.gather.runs, r / d.stride, s / d.stride);
        product.taps.push_back(tap);
      }
      products.push_back(std::move(product));
    }
  return products;
}

void MatmulConvolution::plan_run(const Image& output, bool over_k, std::vector<TapsProduct> products) {
  output_ = output;
  products_ = std::move(products);
  const BlockedLayout matrices = tap_matrices(over_k);
  const DType dtype = d_.dtype;
  weights_in_ = make_reorder(*layout_, dtype, matrices, dtype, context_);
  std::int64_t packed = 0, gathered = 0, scattered = 0;  // elements
  std::size_t scratchpad_bytes = weights_in_ ? weights_in_->workspace_bytes() : 0;
  for (TapsProduct& product : products_) {
    const Gather& gather = product.gather;
    const std::int64_t columns = gather.columns();
    if (columns == 0) continue;
    const std::int64_t total = d_.x[0] * gather.positions.height * gather.positions.width;
    const bool in_place = gather.in_place() && gather.positions.stride == 1;
    product.matmul =
        ChunkedProduct(total, in_place ? total : rows_at_once(total, bytes(columns), context_), [&](std::int64_t rows) {
          return make_product({.a = {rows, columns, dtype},
                               .b = {columns, output.channels, dtype},
                               .c = {rows, output.channels, dtype}},
                              context_);
        });
    scratchpad_bytes = std::max(scratchpad_bytes, product.matmul.workspace_bytes());
    const std::int64_t rows = product.matmul.at_once();
    if (!gather.in_place()) gathered = std::max(gathered, rows * columns);
    if (gather.positions.stride > 1) scattered = std::max(scattered, rows * output.channels);
    if (!product.has_neighbouring_taps()) packed = std::max(packed, columns * output.channels);
  }
  WorkspacePlan workspace;
  const auto take = [&](std::int64_t n_elements) {
    return workspace.take(static_cast<std::size_t>(bytes(n_elements)));
  };
  if (weights_in_) at_.weights = take(matrices.count());
  at_.packed = take(packed);
  at_.rows = take(gathered);
  at_.scattered = take(scattered);
  at_.scratchpad = workspace.take(scratchpad_bytes);
  bytes_ = workspace.size_bytes();
}

void MatmulConvolution::plan_weight_gradient() {
  const Conv2dDescription& d = d_;
  const std::int64_t kernel_size = d.kernel_size, tap_bytes = tap_elements_ * static_cast<std::int64_t>(sizeof(float));
  std::int64_t taps_at_once = 1;
  for (const std::int64_t n : {kernel_size, kernel_size * kernel_size})
    if (n * tap_bytes <= kSumBytes) taps_at_once = n;
  for (std::int64_t tap = 0; tap < kernel_size * kernel_size; ++tap) {
    if (tap % taps_at_once == 0)
      taps_.push_back({.from = x_, .positions = {.height = y_.height, .width = y_.width}, .step = d.stride});
    add_tap(taps_.back().runs, tap / kernel_size - d.padding, tap % kernel_size - d.padding);
  }
  const std::int64_t total = d.x[0] * y_.height * y_.width, columns = taps_at_once * x_.channels;
  const bool in_place = taps_[0].in_place();
  taps_matmul_ =
      ChunkedProduct(total, in_place ? total : rows_at_once(total, bytes(columns), context_), [&](std::int64_t rows) {
        return make_product({.a = {columns, rows, d.dtype, /*is_transposed=*/true},
                             .b = {rows, y_.channels, d.dtype},
                             .c = {columns, y_.channels},
                             .adds = true},
                            context_);
      });
  dweight_out_ = make_reorder(tap_matrices(false), DType::fp32, *layout_, DType::fp32, context_);
  WorkspacePlan workspace;
  at_.dweight = workspace.take(static_cast<std::size_t>(kernel_size * kernel_size * tap_bytes));
  if (dweight_out_) at_.outer = workspace.take(layout_->n_elements() * sizeof(float));
  at_.rows = workspace.take(in_place ? 0 : static_cast<std::size_t>(bytes(taps_matmul_.at_once() * columns)));
  at_.scratchpad = workspace.take(
      std::max(taps_matmul_.workspace_bytes(), dweight_out_ ? dweight_out_->workspace_bytes() : std::size_t{0}));
  bytes_ = workspace.size_bytes();
}

std::string MatmulConvolution::describe() const {
  const bool is_run = !products_.empty();
  const Gather& gather = is_run ? products_[0].gather : taps_[0];
  const ChunkedProduct& matmul = is_run ? products_[0].matmul : taps_matmul_;
  std::string out = "matmul " + matmul.describe();
  if (!gather.in_place()) out += fmt::format(", {} rows gathered at a time", matmul.at_once());
  if (weights_in_ || dweight_out_) out += ", weights reordered";
  return out;
}

const void* MatmulConvolution::rows_of(const Gather& gather, const void* from, Range rows, void* workspace) const {
  const std::int64_t pixel_bytes = bytes(gather.from.channels), row_bytes = bytes(gather.columns());
  const auto* const images = static_cast<const std::byte*>(from);
  if (gather.in_place()) return images + rows.begin * pixel_bytes;
  auto* const to = at<std::byte>(workspace, at_.rows);
  const std::int64_t n_rows = rows.end - rows.begin;
  run_ranges(part_count(context_, n_rows * row_bytes), n_rows, [&](Range mine) {
    gather_rows(gather, images, pixel_bytes, {rows.begin + mine.begin, rows.begin + mine.end},
                to + mine.begin * row_bytes);
  });
  return to;
}

void MatmulConvolution::run(const void* from, const void* weight, void* to, void* workspace) {
  const void* weights = weight;
  if (weights_in_) {
    void* const matrices = at(workspace, at_.weights);
    weights_in_->execute(weight, matrices, at(workspace, at_.scratchpad));
    weights = matrices;
  }
  for (TapsProduct& product : products_)
    run_product(product, from, static_cast<const std::byte*>(weights), static_cast<std::byte*>(to), workspace);
}

void MatmulConvolution::run_product(TapsProduct& product, const void* from, const std::byte* weights, std::byte* to,
                                    void* workspace) {
  const Plane& plane = product.gather.positions;
  const std::int64_t pixel_bytes = bytes(output_.channels), tap_bytes = bytes(tap_elements_);
  const auto scatter = [&](const std::byte* rows, Range range) {
    run_ranges(part_count(context_, (range.end - range.begin) * pixel_bytes), range.end - range.begin, [&](Range mine) {
      scatter_rows(plane, rows ? rows + mine.begin * pixel_bytes : nullptr, pixel_bytes,
                   {range.begin + mine.begin, range.begin + mine.end}, output_, to);
    });
  };
  if (product.taps.empty()) return scatter(nullptr, {0, d_.x[0] * plane.height * plane.width});

  const std::byte* matrix = weights + product.taps[0] * tap_bytes;
  if (!product.has_neighbouring_taps()) {
    auto* const packed = at<std::byte>(workspace, at_.packed);
    for (std::size_t i = 0; i < product.taps.size(); ++i)
      std::memcpy(packed + static_cast<std::int64_t>(i) * tap_bytes, weights + product.taps[i] * tap_bytes,
                  static_cast<std::size_t>(tap_bytes));
    matrix = packed;
  }
  product.matmul.for_each([&](Range range, Product& matmul) {
    auto* const rows = plane.stride > 1 ? at<std::byte>(workspace, at_.scattered) : to + range.begin * pixel_bytes;
    matmul.execute({.a = rows_of(product.gather, from, range, workspace),
                    .b = matrix,
                    .c = rows,
                    .workspace = at(workspace, at_.scratchpad)});
    if (plane.stride > 1) scatter(rows, range);
  });
}

void MatmulConvolution::weight_gradient(const void* x, const void* dy, float* dweight, bool accumulate,
                                        void* workspace) {
  const bool is_direct = !accumulate && !dweight_out_;
  float* const sums = is_direct ? dweight : at<float>(workspace, at_.dweight);
  void* const scratchpad = at(workspace, at_.scratchpad);
  float* some = sums;
  for (const Gather& gather : taps_) {
    const std::int64_t n_sums = gather.columns() * y_.channels;
    std::memset(some, 0, static_cast<std::size_t>(n_sums) * sizeof(float));
    taps_matmul_.for_each([&](Range rows, Product& matmul) {
      matmul.execute({.a = rows_of(gather, x, rows, workspace),
                      .b = static_cast<const std::byte*>(dy) + rows.begin * bytes(y_.channels),
                      .c = some,
                      .workspace = scratchpad});
    });
    some += n_sums;
  }
  float* outer = sums;
  if (dweight_out_) {
    outer = accumulate ? at<float>(workspace, at_.outer) : dweight;
    dweight_out_->execute(sums, outer, scratchpad);  // also writes zeros to the padding of the layout
  }
  if (accumulate) add_into(DType::fp32, dweight, outer, layout_->n_elements(), context_);
}

/// The same if one or both activations are in blocks of channels: they are copied to nhwc and back.
class BlockedConvolution final : public BareConvolution {
 public:
  BlockedConvolution(const Conv2dDescription& d, Direction direction, const CpuContext& context)
      : inner_(in_nhwc(d), direction, context), is_forward_(direction == Direction::forward) {
    WorkspacePlan workspace;
    at_.inner = workspace.take(inner_.workspace_bytes());
    std::size_t reorder_bytes = 0;
    const auto plan = [&](const Shape& shape, Layout layout, bool is_output) {
      const Sizes sizes{shape[0], shape[3], shape[1], shape[2]};
      const BlockedLayout outer(sizes, layout == Layout::nhwc ? "acdb" : "aBcd16b"), nhwc(sizes, "acdb");
      std::unique_ptr<Reorder> reorder = is_output ? make_reorder(nhwc, d.dtype, outer, d.dtype, context)
                                                   : make_reorder(outer, d.dtype, nhwc, d.dtype, context);
      if (!reorder) return Side{};
      reorder_bytes = std::max(reorder_bytes, reorder->workspace_bytes());
      return Side{std::move(reorder), workspace.take(nhwc.n_elements() * size_bytes(d.dtype))};
    };
    x_ = plan(d.x, d.x_layout, direction == Direction::data_gradient);
    y_ = plan(d.y(), d.y_layout, is_forward_);
    at_.reorder = workspace.take(reorder_bytes);
    bytes_ = workspace.size_bytes();
  }

  std::shared_ptr<const BlockedLayout> weight_layout() const override { return inner_.weight_layout(); }
  std::size_t workspace_bytes() const override { return bytes_; }
  std::string describe() const override { return inner_.describe() + ", activations reordered"; }

  void run(const void* from, const void* weight, void* to, void* workspace) override {
    const Side &in = is_forward_ ? x_ : y_, &out = is_forward_ ? y_ : x_;
    void* const inner_to = out.reorder ? at(workspace, out.at) : to;
    inner_.run(input(in, from, workspace), weight, inner_to, at(workspace, at_.inner));
    if (out.reorder) out.reorder->execute(inner_to, to, at(workspace, at_.reorder));
  }
  void weight_gradient(const void* x, const void* dy, float* dweight, bool accumulate, void* workspace) override {
    inner_.weight_gradient(input(x_, x, workspace), input(y_, dy, workspace), dweight, accumulate,
                           at(workspace, at_.inner));
  }

 private:
  /// An activation: null if the caller's tensor is in nhwc, or else the place of its copy.
  struct Side {
    std::unique_ptr<Reorder> reorder;
    std::size_t at = 0;
  };
  static Conv2dDescription in_nhwc(Conv2dDescription d) {
    d.x_layout = d.y_layout = Layout::nhwc;
    return d;
  }
  const void* input(const Side& side, const void* data, void* workspace) {
    if (!side.reorder) return data;
    side.reorder->execute(data, at(workspace, side.at), at(workspace, at_.reorder));
    return at(workspace, side.at);
  }

  MatmulConvolution inner_;
  bool is_forward_;
  Side x_, y_;
  std::size_t bytes_ = 0;
  struct {
    std::size_t inner = 0, reorder = 0;
  } at_;
};

}  // namespace

bool matmul_convolution_fits(const Conv2dDescription& d, Direction) {
  const bool is_nhwc = d.x_layout == Layout::nhwc && d.y_layout == Layout::nhwc;
  return (is_nhwc || !kHasOnednn) && product_type(d.dtype) == d.dtype;
}

std::unique_ptr<BareConvolution> make_matmul_convolution(const Conv2dDescription& d, Direction direction,
                                                         const CpuContext& context) {
  if (d.x_layout == Layout::nhwc && d.y_layout == Layout::nhwc)
    return std::make_unique<MatmulConvolution>(d, direction, context);
  return std::make_unique<BlockedConvolution>(d, direction, context);
}

}  // namespace lockstep::cpu

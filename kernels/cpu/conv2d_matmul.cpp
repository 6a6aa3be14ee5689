#include "kernels/cpu/conv2d_matmul.h"

#include <omp.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "kernels/cpu/base/parallel.h"
#include "kernels/cpu/base/workspace.h"
#include "kernels/cpu/conv2d_plan.h"
#include "kernels/cpu/conv2d_rows.h"

namespace lockstep::cpu {
namespace {

using dnnl::memory;
using Tag = memory::format_tag;

// Bytes of gathered rows per thread; but at least so many rows that reading all weights in each product does not
// matter.
constexpr std::int64_t kGatheredBytes = std::int64_t{1} << 19, kLeastRows = 256;
// Bytes of the weight gradient that are summed over all rows before those of the next taps.
constexpr std::int64_t kSumBytes = std::int64_t{1} << 19;

/// A row-major matrix, or the transposed of one.
struct Matrix {
  std::int64_t rows = 0, columns = 0;
  memory::data_type type = memory::data_type::f32;
  bool is_transposed = false;
  memory::desc desc() const { return {{rows, columns}, type, is_transposed ? Tag::ba : Tag::ab}; }
};

/// c (M, N) = a (M, L) * b (L, N), overwritten or added to.
class PlannedMatmul {
 public:
  enum class Mode : std::uint8_t { overwrite, add };
  PlannedMatmul() = default;
  PlannedMatmul(const Matrix& a, const Matrix& b, const Matrix& c, Mode mode);
  std::size_t scratchpad_bytes() const { return scratchpad_bytes_; }
  const std::string& implementation() const { return implementation_; }
  void execute(const void* a, const void* b, void* c, void* scratchpad) {
    primitive_.execute(
        {{DNNL_ARG_SRC, a}, {DNNL_ARG_WEIGHTS, b}, {DNNL_ARG_DST, c}, {DNNL_ARG_SCRATCHPAD, scratchpad}});
  }

 private:
  PlannedPrimitive primitive_;
  std::size_t scratchpad_bytes_ = 0;
  std::string implementation_;
};

PlannedMatmul::PlannedMatmul(const Matrix& a, const Matrix& b, const Matrix& c, Mode mode) {
  dnnl::primitive_attr attributes = user_scratchpad();
  if (mode == Mode::add) {
    dnnl::post_ops add;
    add.append_sum(1.0f);
    attributes.set_post_ops(add);
  }
  const dnnl::matmul::primitive_desc chosen(onednn_engine(), a.desc(), b.desc(), c.desc(), attributes);
  scratchpad_bytes_ = chosen.scratchpad_desc().get_size();
  implementation_ = chosen.impl_info_str();
  primitive_ = PlannedPrimitive(dnnl::matmul(chosen), {{DNNL_ARG_SRC, chosen.src_desc()},
                                                       {DNNL_ARG_WEIGHTS, chosen.weights_desc()},
                                                       {DNNL_ARG_DST, chosen.dst_desc()},
                                                       {DNNL_ARG_SCRATCHPAD, chosen.scratchpad_desc()}});
}

/// One product in chunks of rows; the last chunk may have fewer.
class ChunkedMatmul {
 public:
  ChunkedMatmul() = default;
  template <typename Make>  // PlannedMatmul(rows)
  ChunkedMatmul(std::int64_t total, std::int64_t rows_at_once, const Make& make)
      : total_(total), rows_(rows_at_once), each_(make(rows_)) {
    if (total_ % rows_ > 0) last_ = make(total_ % rows_);
  }
  std::int64_t rows_at_once() const { return rows_; }
  std::size_t scratchpad_bytes() const { return std::max(each_.scratchpad_bytes(), last_.scratchpad_bytes()); }
  const std::string& implementation() const { return each_.implementation(); }
  template <typename Work>  // (rows, matmul)
  void for_each(const Work& work) {
    for (std::int64_t first = 0; first < total_; first += rows_) {
      const Range rows{first, std::min(first + rows_, total_)};
      work(rows, rows.end - rows.begin == rows_ ? each_ : last_);
    }
  }

 private:
  std::int64_t total_ = 0, rows_ = 1;
  PlannedMatmul each_, last_;
};

/// The number of rows to gather at a time, for rows of this many bytes.
std::int64_t rows_at_once(std::int64_t total, std::int64_t row_bytes, const CpuContext& context) {
  const std::int64_t wanted = std::max(kLeastRows, kGatheredBytes / row_bytes) * std::max(1, context.threads);
  const std::int64_t n_chunks = (total + wanted - 1) / wanted;
  return (total + n_chunks - 1) / n_chunks;
}

class MatmulConvolution final : public BareConvolution {
 public:
  MatmulConvolution(const Conv2dDescription& d, Direction direction, const CpuContext& context);

  std::shared_ptr<const OnednnLayout> weight_layout() const override { return layout_; }
  std::size_t workspace_bytes() const override { return bytes_; }
  std::string describe() const override;

  void forward(const void* x, const void* weight, void* y, void* workspace) override { run(x, weight, y, workspace); }
  void data_gradient(const void* dy, const void* weight, void* dx, void* workspace) override {
    run(dy, weight, dx, workspace);
  }
  void weight_gradient(const void* x, const void* dy, float* dweight, bool accumulate, void* workspace) override;

 private:
  /// For forward and the data gradient: positions of the output from taps of the window.
  struct Product {
    Gather gather;
    std::vector<std::int64_t> taps{};  // their positions in the window
    ChunkedMatmul matmul{};
    bool has_neighbouring_taps() const { return taps.back() - taps.front() + 1 == std::ssize(taps); }
  };

  /// Weights or their gradient as matrices (c, k), or (k, c), one for each tap.
  memory::desc tap_matrices(memory::data_type type, bool over_k) const;
  std::vector<Product> forward_products() const;
  std::vector<Product> data_products() const;
  void plan_run(const Image& output, bool over_k, std::vector<Product> products);
  void plan_weight_gradient();
  void run(const void* from, const void* weight, void* to, void* workspace);
  void run_product(Product& product, const void* from, const std::byte* weights, std::byte* to, void* workspace);
  /// The rows of a matrix: in place, or gathered.
  const void* rows_of(const Gather& gather, const void* from, Range rows, void* workspace) const;
  std::int64_t bytes(std::int64_t n_elements) const { return n_elements * element_bytes_; }

  Conv2dDescription description_;
  CpuContext context_;
  Image x_, y_, output_;  // output_: rows of one run
  std::int64_t tap_elements_;
  memory::data_type type_;
  std::int64_t element_bytes_;
  std::shared_ptr<const OnednnLayout> layout_;
  PlannedReorder weights_in_, dweight_out_;  // empty where the layouts agree
  std::vector<Product> products_;            // of a run
  std::vector<Gather> taps_;                 // of the weight gradient: some taps at a time
  ChunkedMatmul taps_matmul_;
  std::size_t bytes_ = 0;
  struct {
    std::size_t weights = 0, packed = 0, rows = 0, scattered = 0, dweight = 0, outer = 0, scratchpad = 0;
  } at_;
};

MatmulConvolution::MatmulConvolution(const Conv2dDescription& d, Direction direction, const CpuContext& context)
    : description_(d),
      context_(context),
      x_{d.x[1], d.x[2], d.x[3]},
      y_{d.y()[1], d.y()[2], d.out_channels},
      tap_elements_(d.x[3] * d.out_channels),
      type_(onednn_type(d.dtype)),
      element_bytes_(static_cast<std::int64_t>(size_bytes(d.dtype))) {
  const memory::desc matrices = tap_matrices(memory::data_type::f32, false);
  layout_ = as_onednn_layout(d.weight_layout, matrices.get_dims());
  if (!layout_) {
    const memory::desc canonical(matrices.get_dims(), memory::data_type::f32, Tag::oihw);
    layout_ = std::make_shared<OnednnLayout>(canonical, matrices);
  }
  plan_with_onednn(text(d), [&] {
    switch (direction) {
      case Direction::forward:
        return plan_run(y_, false, forward_products());
      case Direction::data_gradient:
        return plan_run(x_, true, data_products());
      case Direction::weight_gradient:
        return plan_weight_gradient();
    }
  });
}

memory::desc MatmulConvolution::tap_matrices(memory::data_type type, bool over_k) const {
  const std::int64_t c = x_.channels, k = y_.channels, window = description_.window;
  return {{k, c, window, window}, type, {over_k ? c : 1, over_k ? 1 : k, window * c * k, c * k}};
}

std::vector<MatmulConvolution::Product> MatmulConvolution::forward_products() const {
  const Conv2dDescription& d = description_;
  Product product{.gather = {.from = x_, .positions = {.height = y_.height, .width = y_.width}, .step = d.stride}};
  for (std::int64_t tap = 0; tap < d.window * d.window; ++tap) {
    add_tap(product.gather.runs, tap / d.window - d.padding, tap % d.window - d.padding);
    product.taps.push_back(tap);
  }
  std::vector<Product> products;
  products.push_back(std::move(product));
  return products;
}

std::vector<MatmulConvolution::Product> MatmulConvolution::data_products() const {
  const Conv2dDescription& d = description_;
  std::vector<Product> products;
  for (std::int64_t row = 0; row < std::min<std::int64_t>(d.stride, x_.height); ++row)
    for (std::int64_t column = 0; column < std::min<std::int64_t>(d.stride, x_.width); ++column) {
      const Plane plane{.row = row,
                        .column = column,
                        .stride = d.stride,
                        .height = (x_.height - row + d.stride - 1) / d.stride,
                        .width = (x_.width - column + d.stride - 1) / d.stride};
      Product product{.gather = {.from = y_, .positions = plane}};
      for (std::int64_t tap = 0; tap < d.window * d.window; ++tap) {
        const std::int64_t r = row + d.padding - tap / d.window, s = column + d.padding - tap % d.window;
        if (r % d.stride != 0 || s % d.stride != 0) continue;
        add_tap(product.gather.runs, r / d.stride, s / d.stride);
        product.taps.push_back(tap);
      }
      products.push_back(std::move(product));
    }
  return products;
}

void MatmulConvolution::plan_run(const Image& output, bool over_k, std::vector<Product> products) {
  output_ = output;
  products_ = std::move(products);
  const memory::desc matrices = tap_matrices(type_, over_k);
  weights_in_ = PlannedReorder(layout_->desc(type_), matrices);
  std::int64_t packed = 0, gathered = 0, scattered = 0;  // elements
  std::size_t scratchpad_bytes = weights_in_.scratchpad_bytes();
  for (Product& product : products_) {
    const Gather& gather = product.gather;
    const std::int64_t columns = gather.columns();
    if (columns == 0) continue;
    const std::int64_t total = description_.x[0] * gather.positions.height * gather.positions.width;
    const bool in_place = gather.in_place() && gather.positions.stride == 1;
    product.matmul =
        ChunkedMatmul(total, in_place ? total : rows_at_once(total, bytes(columns), context_), [&](std::int64_t rows) {
          return PlannedMatmul({rows, columns, type_}, {columns, output.channels, type_},
                               {rows, output.channels, type_}, PlannedMatmul::Mode::overwrite);
        });
    scratchpad_bytes = std::max(scratchpad_bytes, product.matmul.scratchpad_bytes());
    const std::int64_t rows = product.matmul.rows_at_once();
    if (!gather.in_place()) gathered = std::max(gathered, rows * columns);
    if (gather.positions.stride > 1) scattered = std::max(scattered, rows * output.channels);
    if (!product.has_neighbouring_taps()) packed = std::max(packed, columns * output.channels);
  }
  WorkspacePlan workspace;
  const auto take = [&](std::int64_t n_elements) {
    return workspace.take(static_cast<std::size_t>(bytes(n_elements)));
  };
  if (weights_in_) at_.weights = workspace.take(matrices.get_size());
  at_.packed = take(packed);
  at_.rows = take(gathered);
  at_.scattered = take(scattered);
  at_.scratchpad = workspace.take(scratchpad_bytes);
  bytes_ = workspace.size_bytes();
}

void MatmulConvolution::plan_weight_gradient() {
  const Conv2dDescription& d = description_;
  const std::int64_t window = d.window, tap_bytes = tap_elements_ * static_cast<std::int64_t>(sizeof(float));
  std::int64_t taps_at_once = 1;
  for (const std::int64_t n : {window, window * window})
    if (n * tap_bytes <= kSumBytes) taps_at_once = n;
  for (std::int64_t tap = 0; tap < window * window; ++tap) {
    if (tap % taps_at_once == 0)
      taps_.push_back({.from = x_, .positions = {.height = y_.height, .width = y_.width}, .step = d.stride});
    add_tap(taps_.back().runs, tap / window - d.padding, tap % window - d.padding);
  }
  const std::int64_t total = d.x[0] * y_.height * y_.width, columns = taps_at_once * x_.channels;
  const bool in_place = taps_[0].in_place();
  taps_matmul_ =
      ChunkedMatmul(total, in_place ? total : rows_at_once(total, bytes(columns), context_), [&](std::int64_t rows) {
        return PlannedMatmul({columns, rows, type_, true}, {rows, y_.channels, type_},
                             {columns, y_.channels, memory::data_type::f32}, PlannedMatmul::Mode::add);
      });
  dweight_out_ = PlannedReorder(tap_matrices(memory::data_type::f32, false), layout_->desc());
  WorkspacePlan workspace;
  at_.dweight = workspace.take(static_cast<std::size_t>(window * window * tap_bytes));
  if (dweight_out_) at_.outer = workspace.take(layout_->desc().get_size());
  at_.rows = workspace.take(in_place ? 0 : static_cast<std::size_t>(bytes(taps_matmul_.rows_at_once() * columns)));
  at_.scratchpad = workspace.take(std::max(taps_matmul_.scratchpad_bytes(), dweight_out_.scratchpad_bytes()));
  bytes_ = workspace.size_bytes();
}

std::string MatmulConvolution::describe() const {
  const bool is_run = !products_.empty();
  const Gather& gather = is_run ? products_[0].gather : taps_[0];
  const ChunkedMatmul& matmul = is_run ? products_[0].matmul : taps_matmul_;
  std::string out = "matmul " + matmul.implementation();
  if (!gather.in_place()) out += fmt::format(", {} rows gathered at a time", matmul.rows_at_once());
  if (weights_in_ || dweight_out_) out += ", weights reordered";
  return out;
}

const void* MatmulConvolution::rows_of(const Gather& gather, const void* from, Range rows, void* workspace) const {
  const std::int64_t pixel_bytes = bytes(gather.from.channels), row_bytes = bytes(gather.columns());
  const auto* const images = static_cast<const std::byte*>(from);
  if (gather.in_place()) return images + rows.begin * pixel_bytes;
  auto* const to = at<std::byte>(workspace, at_.rows);
  const std::int64_t n_rows = rows.end - rows.begin;
  const int parts = part_count(context_, n_rows * row_bytes);
  run_parts(parts, [&](int part) {
    const Range mine = part_of(n_rows, part, parts);
    gather_rows(gather, images, pixel_bytes, {rows.begin + mine.begin, rows.begin + mine.end},
                to + mine.begin * row_bytes);
  });
  return to;
}

void MatmulConvolution::run(const void* from, const void* weight, void* to, void* workspace) {
  omp_set_num_threads(context_.threads);
  const void* weights = weight;
  if (weights_in_) {
    void* const matrices = at<void>(workspace, at_.weights);
    weights_in_.execute(weight, matrices, at<void>(workspace, at_.scratchpad));
    weights = matrices;
  }
  for (Product& product : products_)
    run_product(product, from, static_cast<const std::byte*>(weights), static_cast<std::byte*>(to), workspace);
}

void MatmulConvolution::run_product(Product& product, const void* from, const std::byte* weights, std::byte* to,
                                    void* workspace) {
  const Plane& plane = product.gather.positions;
  const std::int64_t pixel_bytes = bytes(output_.channels), tap_bytes = bytes(tap_elements_);
  const auto scatter = [&](const std::byte* rows, Range range) {
    const int parts = part_count(context_, (range.end - range.begin) * pixel_bytes);
    run_parts(parts, [&](int part) {
      const Range mine = part_of(range.end - range.begin, part, parts);
      scatter_rows(plane, rows ? rows + mine.begin * pixel_bytes : nullptr, pixel_bytes,
                   {range.begin + mine.begin, range.begin + mine.end}, output_, to);
    });
  };
  if (product.taps.empty()) return scatter(nullptr, {0, description_.x[0] * plane.height * plane.width});

  const std::byte* matrix = weights + product.taps[0] * tap_bytes;
  if (!product.has_neighbouring_taps()) {
    auto* const packed = at<std::byte>(workspace, at_.packed);
    for (std::size_t i = 0; i < product.taps.size(); ++i)
      std::memcpy(packed + static_cast<std::int64_t>(i) * tap_bytes, weights + product.taps[i] * tap_bytes,
                  static_cast<std::size_t>(tap_bytes));
    matrix = packed;
  }
  product.matmul.for_each([&](Range range, PlannedMatmul& matmul) {
    auto* const rows = plane.stride > 1 ? at<std::byte>(workspace, at_.scattered) : to + range.begin * pixel_bytes;
    matmul.execute(rows_of(product.gather, from, range, workspace), matrix, rows, at<void>(workspace, at_.scratchpad));
    if (plane.stride > 1) scatter(rows, range);
  });
}

void MatmulConvolution::weight_gradient(const void* x, const void* dy, float* dweight, bool accumulate,
                                        void* workspace) {
  omp_set_num_threads(context_.threads);
  const bool is_direct = !accumulate && !dweight_out_;
  float* const sums = is_direct ? dweight : at(workspace, at_.dweight);
  void* const scratchpad = at<void>(workspace, at_.scratchpad);
  float* some = sums;
  for (const Gather& gather : taps_) {
    const std::int64_t n_sums = gather.columns() * y_.channels;
    std::memset(some, 0, static_cast<std::size_t>(n_sums) * sizeof(float));
    taps_matmul_.for_each([&](Range rows, PlannedMatmul& matmul) {
      matmul.execute(rows_of(gather, x, rows, workspace),
                     static_cast<const std::byte*>(dy) + rows.begin * bytes(y_.channels), some, scratchpad);
    });
    some += n_sums;
  }
  float* outer = sums;
  if (dweight_out_) {
    outer = accumulate ? at(workspace, at_.outer) : dweight;
    dweight_out_.execute(sums, outer, scratchpad);  // zeros where the layout pads
  }
  if (accumulate) add_into(dweight, outer, layout_->n_elements(), context_);
}

}  // namespace

bool matmul_convolution_fits(const Conv2dDescription& d, Direction) {
  return d.x_layout == Layout::nhwc && d.y_layout == Layout::nhwc &&
         (d.dtype == DType::fp32 || onednn_has(dnnl::cpu_isa::avx512_core_bf16));
}

std::unique_ptr<BareConvolution> make_matmul_convolution(const Conv2dDescription& d, Direction direction,
                                                         const CpuContext& context) {
  omp_set_num_threads(context.threads);  // oneDNN plans for as many
  return std::make_unique<MatmulConvolution>(d, direction, context);
}

}  // namespace lockstep::cpu

// Products by our own kernels. Blocks of a and b are packed into panels of fp32 numbers that fit into the caches, and a
// kernel keeps a tile of c, some rows by two vectors of columns, in registers (K. Goto and R. van de Geijn, Anatomy of
// High-Performance Matrix Multiplication, ACM TOMS 34, 2008). The sums of a block of L are added to c when they are
// complete. A bf16 c is summed in fp32 in the workspace and rounded once.
#include <algorithm>
#include <cstring>

#include "kernels/cpu/base/parallel.h"
#include "kernels/cpu/base/product.h"
#include "kernels/cpu/base/simd.h"
#include "lockstep/workspace.h"

namespace lockstep::cpu {

/// The operands of a kernel: panels of a (n_inner, rows of a tile) and of b (n_inner, columns of a tile), and a part of
/// c.
struct ProductBlock {
  const float* a = nullptr;
  const float* b = nullptr;
  float* c = nullptr;
  std::int64_t c_row = 0;  // elements from one row to the next
  std::int64_t rows = 0, columns = 0, n_inner = 0;
};

/// A part of a matrix in its layout in memory.
template <typename E>
struct MatrixPart {
  const E* data = nullptr;
  std::int64_t outer_stride = 0, inner_stride = 0;  // strides of a panel's rows or columns, and of the inner dimension
  std::int64_t outer = 0, inner = 0;                // sizes
};

}  // namespace lockstep::cpu

#define LOCKSTEP_KERNELS "kernels/cpu/base/product_kernels.h"
#include "kernels/cpu/base/each_isa.h"

namespace lockstep::cpu {
namespace {

constexpr std::int64_t kInner = kOwnProductBlock;  // inner size of a block: a panel of b stays in the L1 cache
constexpr std::int64_t kRows = 120;  // rows of a block of a, which stays in the L2 cache; a multiple of every tile's
constexpr std::int64_t kColumns = 2048;  // columns of a block of b
constexpr std::int64_t kSumRows = 512;   // rows per thread of a bf16 c that are summed in fp32 at a time
constexpr std::int64_t kMaxTileColumns = 32;

std::int64_t divide_up(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

/// The columns of a panel of b depend on the instruction set in use.
std::int64_t tile_columns() { return LOCKSTEP_DISPATCH(product_tile_columns)(); }

class OwnProduct final : public Product {
 public:
  OwnProduct(const ProductDescription& d, const CpuContext& context)
      : d_(d), threads_(std::max(1, context.threads)), context_(context) {
    require(d.a.columns == d.b.rows && d.c.rows == d.a.rows && d.c.columns == d.b.columns && !d.c.is_transposed &&
                d.a.dtype == d.b.dtype,
            ErrorCode::internal, "matrices of {} x {}, {} x {} and {} x {} are no product", d.a.rows, d.a.columns,
            d.b.rows, d.b.columns, d.c.rows, d.c.columns);
    const std::int64_t inner = std::min(kInner, d.a.columns);
    const std::int64_t columns = divide_up(std::min(kColumns, d.c.columns), kMaxTileColumns) * kMaxTileColumns;
    const auto floats = [](std::int64_t n) { return static_cast<std::size_t>(n) * sizeof(float); };
    WorkspacePlan workspace;
    at_.b = workspace.take(floats(inner * columns));
    at_.a = workspace.take(floats(threads_ * inner * kRows));
    slab_ = d.c.dtype == DType::fp32 ? d.c.rows : std::min(d.c.rows, kSumRows * threads_);
    if (d.c.dtype != DType::fp32) at_.sums = workspace.take(floats(slab_ * std::min(kColumns, d.c.columns)));
    bytes_ = workspace.size_bytes();
  }

  std::size_t workspace_bytes() const override { return bytes_; }
  std::string describe() const override { return "own kernels"; }
  void execute(const Arguments& arguments) override {
    with_elements(d_.a.dtype, [&](auto element) { run<decltype(element)>(arguments); });
  }

 private:
  template <typename E>
  void run(const Arguments& arguments);
  /// Computes `columns` of `rows` of c.
  template <typename E>
  void run_slab(const Arguments& arguments, Range rows, Range columns);
  template <typename E>
  void multiply(const Arguments& arguments, Range inner, Range rows, Range columns, float* c, std::int64_t c_row);
  /// Calls work(E{}, row) for each row of c in `rows`, on all threads.
  template <typename Work>
  void for_rows(Range rows, std::int64_t width, const Work& work) const {
    run_ranges(part_count(context_, (rows.end - rows.begin) * width * 4), rows.end - rows.begin, [&](Range mine) {
      for (std::int64_t row = rows.begin + mine.begin; row < rows.begin + mine.end; ++row) work(row);
    });
  }

  ProductDescription d_;
  int threads_;
  CpuContext context_;
  std::int64_t slab_;  // rows of c that are completed before the next ones begin
  std::size_t bytes_ = 0;
  struct {
    std::size_t a = 0, b = 0, sums = 0;
  } at_;
};

template <typename E>
void OwnProduct::run(const Arguments& arguments) {
  for (std::int64_t column = 0; column < d_.c.columns; column += kColumns)
    for (std::int64_t row = 0; row < d_.c.rows; row += slab_)
      run_slab<E>(arguments, {row, std::min(row + slab_, d_.c.rows)},
                  {column, std::min(column + kColumns, d_.c.columns)});
}

template <typename E>
void OwnProduct::run_slab(const Arguments& arguments, Range rows, Range columns) {
  const std::int64_t width = columns.end - columns.begin;
  with_elements(d_.c.dtype, [&]<typename C>(C) {
    constexpr bool kIsInPlace = sizeof(C) == sizeof(float);
    const auto c_at = [&](std::int64_t row) {
      return static_cast<C*>(arguments.c) + row * d_.c.stride() + columns.begin;
    };
    float* const sums =
        kIsInPlace ? reinterpret_cast<float*>(c_at(rows.begin)) : at<float>(arguments.workspace, at_.sums);
    const std::int64_t sums_row = kIsInPlace ? d_.c.stride() : width;
    const C* const bias = d_.has_bias ? static_cast<const C*>(arguments.bias) + columns.begin : nullptr;
    // The initial values to which the products are added: the previous contents, and the bias.
    if (!kIsInPlace || !d_.adds || bias != nullptr)
      for_rows(rows, width, [&](std::int64_t row) {
        float* const to = sums + (row - rows.begin) * sums_row;
        const C* const from = c_at(row);
        for (std::int64_t i = 0; i < width; ++i)
          to[i] = (d_.adds ? to_float(from[i]) : 0.0f) + (bias != nullptr ? to_float(bias[i]) : 0.0f);
      });
    for (std::int64_t inner = 0; inner < d_.a.columns; inner += kInner)
      multiply<E>(arguments, {inner, std::min(inner + kInner, d_.a.columns)}, rows, columns, sums, sums_row);
    if constexpr (!kIsInPlace)
      for_rows(rows, width, [&](std::int64_t row) {
        const float* const from = sums + (row - rows.begin) * sums_row;
        C* const to = c_at(row);
        for (std::int64_t i = 0; i < width; ++i) to[i] = from_float<C>(from[i]);
      });
  });
}

template <typename E>
void OwnProduct::multiply(const Arguments& arguments, Range inner, Range rows, Range columns, float* c,
                          std::int64_t c_row) {
  const std::int64_t n_inner = inner.end - inner.begin, tile = tile_columns();
  const std::int64_t n_rows = rows.end - rows.begin, n_columns = columns.end - columns.begin;
  const std::int64_t a_row = d_.a.is_transposed ? 1 : d_.a.columns, a_inner = d_.a.is_transposed ? d_.a.rows : 1;
  const std::int64_t b_column = d_.b.is_transposed ? d_.b.rows : 1, b_inner = d_.b.is_transposed ? 1 : d_.b.columns;
  const auto* const a = static_cast<const E*>(arguments.a) + rows.begin * a_row + inner.begin * a_inner;
  const auto* const b = static_cast<const E*>(arguments.b) + columns.begin * b_column + inner.begin * b_inner;
  float* const packed_b = at<float>(arguments.workspace, at_.b);
  const std::int64_t n_panels = divide_up(n_columns, tile);
  const auto columns_of = [&](Range panels) { return std::min(panels.end * tile, n_columns) - panels.begin * tile; };
  const int packing_parts = part_count(context_, n_inner * n_columns * 4);
  run_ranges(packing_parts, n_panels, [&](Range panels) {
    if (panels.begin < panels.end) LOCKSTEP_DISPATCH(pack_columns<E>)
    ({b + panels.begin * tile * b_column, b_column, b_inner, columns_of(panels), n_inner},
     packed_b + panels.begin * tile * n_inner);
  });
  // Blocks of rows are divided among the threads. If there are too few blocks, the columns are divided too.
  const std::int64_t n_blocks = divide_up(n_rows, kRows);
  const std::int64_t groups = std::clamp<std::int64_t>(divide_up(threads_, n_blocks), 1, n_panels);
  const std::int64_t n_units = n_blocks * groups;
  const int parts =
      static_cast<int>(std::min<std::int64_t>(part_count(context_, n_rows * n_columns * n_inner), n_units));
  run_parts(parts, [&](int part) {
    float* const packed_a = at<float>(arguments.workspace, at_.a) + part * std::min(kInner, d_.a.columns) * kRows;
    const Range units = part_of(n_units, part, parts);
    for (std::int64_t unit = units.begin; unit < units.end; ++unit) {
      const std::int64_t row = unit / groups * kRows, block_rows = std::min(kRows, n_rows - row);
      const Range panels = part_of(n_panels, static_cast<int>(unit % groups), static_cast<int>(groups));
      LOCKSTEP_DISPATCH(pack_rows<E>)({a + row * a_row, a_row, a_inner, block_rows, n_inner}, packed_a);
      LOCKSTEP_DISPATCH(multiply_block)
      ({.a = packed_a,
        .b = packed_b + panels.begin * tile * n_inner,
        .c = c + row * c_row + panels.begin * tile,
        .c_row = c_row,
        .rows = block_rows,
        .columns = columns_of(panels),
        .n_inner = n_inner});
    }
  });
}

class OwnReorder final : public Reorder {
 public:
  OwnReorder(const BlockedLayout& from, DType from_type, const BlockedLayout& to, DType to_type,
             const CpuContext& context)
      : copy_(from, to),
        from_type_(from_type),
        to_type_(to_type),
        bytes_(to.n_elements() * size_bytes(to_type)),
        has_padding_(to.padded()),
        parts_(part_count(context, static_cast<std::int64_t>(bytes_))) {}

  std::size_t workspace_bytes() const override { return 0; }
  void execute(const void* from, void* to, void*) override {
    if (has_padding_) std::memset(to, 0, bytes_);
    with_elements(from_type_, [&](auto source) {
      with_elements(to_type_, [&](auto target) {
        run_parts(parts_, [&](int part) {
          copy_.run(static_cast<const decltype(source)*>(from), static_cast<decltype(target)*>(to), part, parts_);
        });
      });
    });
  }

 private:
  LayoutCopy copy_;
  DType from_type_, to_type_;
  std::size_t bytes_;
  bool has_padding_;
  int parts_;
};

}  // namespace

std::unique_ptr<Product> make_own_product(const ProductDescription& description, const CpuContext& context) {
  return std::make_unique<OwnProduct>(description, context);
}

std::unique_ptr<Reorder> make_own_reorder(const BlockedLayout& from, DType from_type, const BlockedLayout& to,
                                          DType to_type, const CpuContext& context) {
  if (from == to && from_type == to_type) return nullptr;
  return std::make_unique<OwnReorder>(from, from_type, to, to_type, context);
}

#ifndef LOCKSTEP_DNNL
std::unique_ptr<Product> make_product(const ProductDescription& description, const CpuContext& context) {
  return make_own_product(description, context);
}
DType product_type(DType dtype) { return dtype; }
std::unique_ptr<Reorder> make_reorder(const BlockedLayout& from, DType from_type, const BlockedLayout& to,
                                      DType to_type, const CpuContext& context) {
  return make_own_reorder(from, from_type, to, to_type, context);
}
std::string product_library() { return "oneDNN none"; }
std::string product_instructions() { return name(isa()); }
#endif

}  // namespace lockstep::cpu

// Low-rank adapters (lockstep/ops/lora.h), with the products of cuBLASLt. One product computes h of all parts, and
// another adds all parts to y. For this, the matrices B of the parts, times the scale, are first laid out as one matrix
// (out, parts * rank) with zeros elsewhere. The zeros multiply the small cost of these products by the number of parts,
// but save a pass over y and dy for each part. With dropout, each part has its own x, and h, dA and dx are computed one
// part after the other.
// Bytes moved besides the products: those of B and dB, which are laid out and taken apart. With dropout, for each part,
// x is read and written twice, dx is read and written once, and the term that is added to dx is read.
#include <algorithm>
#include <memory>

#include "kernels/cuda/base/items.h"
#include "kernels/cuda/matmul_bare.h"
#include "lockstep/ops/lora.h"
#include "lockstep/workspace.h"

namespace lockstep::cuda {
namespace {

std::string text(const LoraDescription& d) {
  return fmt::format("adapter of rank {} for {} of ({}, {}) -> {}, {}{}", d.rank, d.parts.size(), d.rows, d.in_features,
                     d.out_features, d.tf32 ? "tf32" : name(d.dtype),
                     d.drops() ? fmt::format(", dropout {:g}", d.dropout) : "");
}

/// The positions of the B of a part: its rows in the packed (columns, rank), and its block in the laid-out (out, all
/// ranks).
struct PartOfB {
  std::int64_t first = 0, columns = 0, rank = 0;  // rows before it, its rows, and their length
  std::int64_t begin = 0, first_rank = 0,
               n_ranks = 0;  // in the laid-out matrix: rows and columns before it, and the row length
  __device__ std::int64_t packed(std::int64_t i) const { return first * rank + i; }
  __device__ std::int64_t laid_out(std::int64_t i) const {
    return (begin + i / rank) * n_ranks + first_rank + i % rank;
  }
};

template <typename T>
__global__ void zero_elements(T* target, std::int64_t n) {
  for (std::int64_t i = first_item(); i < n; i += item_stride()) target[i] = from_float<T>(0.0f);
}

template <typename T>
__global__ void lay_out_part(const T* b, T* all, PartOfB part, float scale) {
  for (std::int64_t i = first_item(); i < part.columns * part.rank; i += item_stride())
    all[part.laid_out(i)] = from_float<T>(scale * to_float(b[part.packed(i)]));
}

__global__ void store_part_of_db(const float* all, float* db, PartOfB part, float scale, bool accumulate) {
  for (std::int64_t i = first_item(); i < part.columns * part.rank; i += item_stride()) {
    float& target = db[part.packed(i)];
    target = (accumulate ? target : 0.0f) + scale * all[part.laid_out(i)];
  }
}

/// Copies `columns` columns of each row.
template <typename T>
__global__ void copy_columns(const T* from, std::int64_t from_row, T* to, std::int64_t to_row, std::int64_t rows,
                             std::int64_t columns) {
  for (std::int64_t i = first_item(); i < rows * columns; i += item_stride())
    to[i / columns * to_row + i % columns] = from[i / columns * from_row + i % columns];
}

/// Each thread handles the elements of one Philox block.
template <typename T>
__global__ void drop_rows(const T* source, T* target, LoraDropout dropout, std::int64_t rows, std::int64_t width,
                          std::uint32_t stream, const std::uint32_t* ids, const StepScalars* scalars, bool accumulate) {
  const std::int64_t n = rows * dropout.blocks;
  for (std::int64_t i = first_item(); i < n; i += item_stride()) {
    const std::int64_t row = i / dropout.blocks, block = i % dropout.blocks;
    const std::uint32_t kept = dropout.kept(row, block, ids[row / dropout.tokens], stream, scalars->epoch);
    const std::int64_t first = block * LoraDropout::kPerBlock;
    for (std::int64_t j = 0; j < LoraDropout::kPerBlock && first + j < width; ++j) {
      const std::int64_t at = row * width + first + j;
      const float value = (kept >> j & 1u) != 0 ? dropout.keep_scale * to_float(source[at]) : 0.0f;
      target[at] = from_float<T>(accumulate ? to_float(target[at]) + value : value);
    }
  }
}

class CudaLora final : public CudaOp<LoraDescription> {
 public:
  CudaLora(const LoraDescription& d, const CudaContext& context);

  OpMemoryRequirements memory_requirements() const override { return requirements_; }
  std::string describe() const override { return fmt::format("{}: cuBLASLt, {}", text(d_), h_->algorithm()); }
  void run_forward(const Forward& args, const OpMemory& memory, Stream& stream) override {
    dispatch(d_.dtype, [&](auto* type) { forward<std::remove_pointer_t<decltype(type)>>(args, memory, stream); });
  }
  void run_backward(const Backward& args, const OpMemory& memory, Stream& stream) override {
    require(!d_.inference, ErrorCode::internal, "{} was planned for inference, and backward was called", text(d_));
    if (args.parameter_mode == GradientMode::skip && args.dx == nullptr) return;
    dispatch(d_.dtype, [&](auto* type) { backward<std::remove_pointer_t<decltype(type)>>(args, memory, stream); });
  }

 private:
  std::int64_t group_ranks() const { return d_.drops() ? d_.rank : d_.ranks(); }
  std::size_t n_groups() const { return d_.drops() ? d_.parts.size() : 1; }
  Grid grid(std::int64_t n) const { return grid_of_items(n, context_); }
  void place();
  template <typename Work>
  void for_parts(const Work& work) const;
  template <typename T>
  void lay_out_b(const void* b, void* workspace, Stream& stream) const;
  template <typename T>
  void drop(const T* source, T* target, std::size_t part, const Samples& samples, bool accumulate,
            Stream& stream) const;
  template <typename T>
  const void* dropped(const void* x, std::size_t part, const Samples& samples, void* workspace, Stream& stream) const;
  /// The rows of A for a group, aligned as cuBLASLt requires.
  template <typename T>
  const void* rows_of_a(const void* a, std::size_t group, void* workspace, Stream& stream) const;
  template <typename T>
  void hidden(const void* x, const void* a, const Samples& samples, void* workspace, Stream& stream);
  template <typename T>
  void forward(const Forward& args, const OpMemory& memory, Stream& stream);
  template <typename T>
  void backward(const Backward& args, const OpMemory& memory, Stream& stream);
  template <typename T>
  void backward_of_group(const Backward& args, std::size_t group, void* workspace, Stream& stream);

  std::unique_ptr<PlannedProduct> h_, y_, dh_, db_, da_, dx_;
  OpMemoryRequirements requirements_;
  struct Places {
    std::size_t product = 0, a = 0, b = 0, x = 0, h = 0, part = 0, dh = 0, da = 0, db = 0, dx = 0;
  } at_;
};

CudaLora::CudaLora(const LoraDescription& d, const CudaContext& context) : PlannedOp(d, context) {
  const auto plan = [&](const ProductDescription& product) { return plan_product(d, product, context); };
  const std::int64_t rows = d.rows, in = d.in_features, out = d.out_features, all = d.ranks(), some = group_ranks();
  h_ = plan({.rows = rows, .columns = some, .inner = in, .b_is_transposed = true, .d_dtype = d.dtype});
  y_ = plan({.rows = rows, .columns = out, .inner = all, .b_is_transposed = true, .d_dtype = d.dtype});
  if (!d.inference) {
    dh_ = plan({.rows = rows, .columns = all, .inner = out, .d_dtype = d.dtype});
    db_ = plan({.rows = out, .columns = all, .inner = rows, .a_is_transposed = true});
    da_ = plan({.rows = some, .columns = in, .inner = rows, .a_is_transposed = true});
    dx_ = plan({.rows = rows, .columns = in, .inner = some, .d_dtype = d.dtype});
  }
  place();
}

void CudaLora::place() {
  const std::int64_t rows = d_.rows, in = d_.in_features, out = d_.out_features, all = d_.ranks();
  const auto bytes = [&](std::int64_t n) { return static_cast<std::size_t>(n) * size_bytes(d_.dtype); };
  std::size_t product_bytes = 0;
  for (const auto* product : {&h_, &y_, &dh_, &db_, &da_, &dx_})
    if (*product) product_bytes = std::max(product_bytes, (*product)->workspace_bytes());
  WorkspacePlan workspace;
  at_.product = workspace.take(product_bytes);
  at_.b = workspace.take(bytes(out * all));
  at_.h = workspace.take(bytes(rows * all));
  if (d_.drops()) {
    at_.a = workspace.take(bytes(d_.rank * in));
    at_.x = workspace.take(bytes(rows * in));
    at_.part = workspace.take(bytes(rows * d_.rank));
  }
  requirements_.forward_workspace_bytes = workspace.size_bytes();
  if (d_.inference) return;
  at_.dh = workspace.take(bytes(rows * all));
  at_.db = workspace.take(static_cast<std::size_t>(out * all) * sizeof(float));
  if (d_.drops()) at_.da = workspace.take(static_cast<std::size_t>(d_.rank * in) * sizeof(float));
  if (d_.drops()) at_.dx = workspace.take(bytes(rows * in));
  requirements_.backward_workspace_bytes = workspace.size_bytes();
}

/// Calls work with the PartOfB of each part.
template <typename Work>
void CudaLora::for_parts(const Work& work) const {
  PartOfB part{.rank = d_.rank, .n_ranks = d_.ranks()};
  for (const LoraPart& p : d_.parts) {
    part.columns = p.columns;
    part.begin = p.begin;
    work(part);
    part.first += p.columns;
    part.first_rank += d_.rank;
  }
}

template <typename T>
void CudaLora::lay_out_b(const void* b, void* workspace, Stream& stream) const {
  T* const all = at<T>(workspace, at_.b);
  const std::int64_t n = d_.out_features * d_.ranks();
  if (d_.parts.size() > 1 || d_.columns() < d_.out_features) launch(zero_elements<T>, grid(n), stream, all, n);
  for_parts([&](const PartOfB& part) {
    launch(lay_out_part<T>, grid(part.columns * part.rank), stream, static_cast<const T*>(b), all, part, d_.scale);
  });
}

template <typename T>
void CudaLora::drop(const T* source, T* target, std::size_t part, const Samples& samples, bool accumulate,
                    Stream& stream) const {
  const LoraDropout dropout = LoraDropout::of(d_);
  launch(drop_rows<T>, grid(d_.rows * dropout.blocks), stream, source, target, dropout, d_.rows, d_.in_features,
         d_.parts[part].stream, samples.ids, samples.scalars, accumulate);
}

template <typename T>
const void* CudaLora::dropped(const void* x, std::size_t part, const Samples& samples, void* workspace,
                              Stream& stream) const {
  if (!d_.drops()) return x;
  drop(static_cast<const T*>(x), at<T>(workspace, at_.x), part, samples, false, stream);
  return at(workspace, at_.x);
}

template <typename T>
const void* CudaLora::rows_of_a(const void* a, std::size_t group, void* workspace, Stream& stream) const {
  const T* const own = static_cast<const T*>(a) + static_cast<std::int64_t>(group) * group_ranks() * d_.in_features;
  if (are_aligned(own)) return own;
  launch(copy_columns<T>, grid(d_.rank * d_.in_features), stream, own, d_.in_features, at<T>(workspace, at_.a),
         d_.in_features, d_.rank, d_.in_features);
  return at(workspace, at_.a);
}

template <typename T>
void CudaLora::hidden(const void* x, const void* a, const Samples& samples, void* workspace, Stream& stream) {
  for (std::size_t group = 0; group < n_groups(); ++group) {
    T* const h = at<T>(workspace, d_.drops() ? at_.part : at_.h);
    h_->run(
        {.a = dropped<T>(x, group, samples, workspace, stream), .b = rows_of_a<T>(a, group, workspace, stream), .d = h},
        at(workspace, at_.product), stream);
    if (d_.drops())
      launch(copy_columns<T>, grid(d_.rows * d_.rank), stream, static_cast<const T*>(h), d_.rank,
             at<T>(workspace, at_.h) + static_cast<std::int64_t>(group) * d_.rank, d_.ranks(), d_.rows, d_.rank);
  }
}

template <typename T>
void CudaLora::forward(const Forward& args, const OpMemory& memory, Stream& stream) {
  void* const workspace = memory.workspace;
  lay_out_b<T>(args.b, workspace, stream);
  hidden<T>(args.x, args.a, args.samples, workspace, stream);
  y_->run({.a = at(workspace, at_.h), .b = at(workspace, at_.b), .d = args.y, .accumulate = true},
          at(workspace, at_.product), stream);
}

template <typename T>
void CudaLora::backward(const Backward& args, const OpMemory& memory, Stream& stream) {
  void* const workspace = memory.workspace;
  void* const product = at(workspace, at_.product);
  lay_out_b<T>(args.b, workspace, stream);
  dh_->run({.a = args.dy, .b = at(workspace, at_.b), .d = at(workspace, at_.dh)}, product, stream);
  if (args.parameter_mode != GradientMode::skip) {
    hidden<T>(args.x, args.a, args.samples, workspace, stream);
    float* const all = at<float>(workspace, at_.db);
    db_->run({.a = args.dy, .b = at(workspace, at_.h), .d = all}, product, stream);
    for_parts([&](const PartOfB& part) {
      launch(store_part_of_db, grid(part.columns * part.rank), stream, static_cast<const float*>(all), args.db, part,
             d_.scale, args.parameter_mode == GradientMode::accumulate);
    });
  }
  for (std::size_t group = 0; group < n_groups(); ++group) backward_of_group<T>(args, group, workspace, stream);
}

template <typename T>
void CudaLora::backward_of_group(const Backward& args, std::size_t group, void* workspace, Stream& stream) {
  void* const product = at(workspace, at_.product);
  T* dh = at<T>(workspace, at_.dh);
  if (d_.drops()) {
    T* const own = at<T>(workspace, at_.part);
    launch(copy_columns<T>, grid(d_.rows * d_.rank), stream,
           static_cast<const T*>(dh) + static_cast<std::int64_t>(group) * d_.rank, d_.ranks(), own, d_.rank, d_.rows,
           d_.rank);
    dh = own;
  }
  if (args.parameter_mode != GradientMode::skip) {
    const bool accumulate = args.parameter_mode == GradientMode::accumulate;
    const void* const x = dropped<T>(args.x, group, args.samples, workspace, stream);
    float* const da = args.da + static_cast<std::int64_t>(group) * group_ranks() * d_.in_features;
    if (are_aligned(da)) {
      da_->run({.a = dh, .b = x, .d = da, .accumulate = accumulate}, product, stream);
    } else {
      float* const made = at<float>(workspace, at_.da);
      da_->run({.a = dh, .b = x, .d = made}, product, stream);
      const PartOfB rows{.columns = d_.rank, .rank = d_.in_features, .n_ranks = d_.in_features};
      launch(store_part_of_db, grid(d_.rank * d_.in_features), stream, static_cast<const float*>(made), da, rows, 1.0f,
             accumulate);
    }
  }
  if (args.dx == nullptr) return;
  const void* const a = rows_of_a<T>(args.a, group, workspace, stream);
  void* const dx = d_.drops() ? at(workspace, at_.dx) : args.dx;
  dx_->run({.a = dh, .b = a, .d = dx, .accumulate = !d_.drops()}, product, stream);
  if (d_.drops()) drop(static_cast<const T*>(dx), static_cast<T*>(args.dx), group, args.samples, true, stream);
}

}  // namespace

std::unique_ptr<Lora> make_lora(const LoraDescription& d, const CudaContext& context) {
  dispatch(d.dtype, [](auto*) {});
  return std::make_unique<CudaLora>(d, context);
}

}  // namespace lockstep::cuda

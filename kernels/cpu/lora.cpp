// Low-rank adapters (lockstep/ops/lora.h). One product computes h of all parts, and another adds all parts to y. For
// this, the matrices B of the parts, times the scale, are first laid out as one matrix (out, parts * rank) with zeros
// elsewhere. The zeros multiply the small cost of these products by the number of parts, but save a pass over y and dy
// for each part. With dropout, each part has its own x, and h, dA and dx are computed one part after the other. The
// dropout mask is drawn once in a pass, for 16 blocks of Philox at a time: backward for q, k and v of SmolLM-135M took
// 1.7 ms instead of 5.0 (rank 8, 256 tokens, fp32, one core with AVX-512). bf16 is multiplied in bf16, or where the
// processor has no instructions for it in fp32 ("inner" below): x, dy and the results then exist in fp32 in the
// workspace.
#include <algorithm>
#include <cstring>
#include <memory>

#include "kernels/cpu/base/parallel.h"
#include "kernels/cpu/base/product.h"
#include "kernels/cpu/base/simd.h"
#include "kernels/cpu/base/widen.h"
#include "lockstep/ops/lora.h"
#include "lockstep/workspace.h"

namespace lockstep::cpu {

/// target = drop(source), or target += drop(source), for each row.
template <typename F, typename T>
struct DropoutTask {
  using From = F;
  using To = T;
  LoraDropout dropout;
  std::int64_t width = 0;
  const From* source = nullptr;
  To* target = nullptr;
  const std::uint32_t* ids = nullptr;
  std::uint32_t stream = 0, epoch = 0;
  std::uint8_t* masks = nullptr;  // (rows, blocks): the elements that are kept; drawn if `draws` is set, otherwise read
  bool draws = true, accumulate = false;
};

}  // namespace lockstep::cpu

#define LOCKSTEP_KERNELS "kernels/cpu/lora_kernels.h"
#include "kernels/cpu/base/each_isa.h"

namespace lockstep::cpu {
namespace {

std::string text(const LoraDescription& d) {
  return fmt::format("adapter of rank {} for {} of ({}, {}) -> {}{}{}", d.rank, d.parts.size(), d.rows, d.in_features,
                     d.out_features, d.dtype == DType::fp32 ? "" : fmt::format(", {}", name(d.dtype)),
                     d.drops() ? fmt::format(", dropout {:g}", d.dropout) : "");
}

class CpuLora final : public CpuOp<LoraDescription> {
 public:
  CpuLora(const LoraDescription& d, const CpuContext& context);

  OpMemoryRequirements memory_requirements() const override { return requirements_; }
  std::string describe() const override { return fmt::format("{}: {}", text(d_), h_->describe()); }
  void run_forward(const Forward& args, const OpMemory& memory, Stream&) override;
  void run_backward(const Backward& args, const OpMemory& memory, Stream&) override;

 private:
  /// What dropout is applied to: the input, for which the mask is drawn, or its gradient, which is added.
  enum class Pass : std::uint8_t { input, gradient };
  std::unique_ptr<Product> product(Matrix a, Matrix b, Matrix c, bool adds = false);
  void plan();
  void place();
  bool is_widened() const { return inner_ != d_.dtype; }
  std::int64_t n_parts() const { return static_cast<std::int64_t>(d_.parts.size()); }
  /// Parts are computed in groups. Returns the rows of A in a group.
  std::int64_t group_ranks() const { return d_.drops() ? d_.rank : d_.ranks(); }
  std::int64_t n_groups() const { return d_.drops() ? n_parts() : 1; }
  std::size_t inner_bytes(std::int64_t n) const { return static_cast<std::size_t>(n) * size_bytes(inner_); }
  /// `data` in the inner type: `data` itself, or a converted copy at `place` in the workspace.
  const void* inner(const void* data, std::int64_t n, void* workspace, std::size_t place) const;
  /// x in the inner type, with the dropout of the part if there is any.
  const void* dropped(const void* x, std::int64_t part, const Samples& samples, void* workspace) const;
  template <typename From, typename To>
  void drop(const From* source, To* target, std::int64_t part, const Samples& samples, Pass pass,
            void* workspace) const;
  void lay_out_b(const void* b, void* workspace) const;
  void hidden(std::int64_t group, const void* x, const void* a, void* workspace);
  const void* rows_of_a(const void* a, std::int64_t group) const;
  void add_wide_to(void* sum, std::size_t place, std::int64_t n, void* workspace) const;
  void copy_columns(const void* from, std::int64_t from_row, void* to, std::int64_t to_row) const;
  void store_db(const float* all, float* db, GradientMode mode) const;
  void data_gradient(const Backward& args, std::int64_t group, const void* dh, void* workspace);

  DType inner_;
  std::unique_ptr<Product> h_, y_, dh_, db_, da_overwrite_, da_accumulate_, dx_;
  std::size_t scratchpad_bytes_ = 0;
  OpMemoryRequirements requirements_;
  struct Places {
    std::size_t scratchpad = 0, a = 0, b = 0, x = 0, h = 0, h_part = 0, y = 0, dh = 0, db = 0, dx = 0, dh_part = 0,
                masks = 0;
  } at_;
};

CpuLora::CpuLora(const LoraDescription& d, const CpuContext& context)
    : PlannedOp(d, context), inner_(product_type(d.dtype)) {
  plan();
  place();
}

std::unique_ptr<Product> CpuLora::product(Matrix a, Matrix b, Matrix c, bool adds) {
  auto made = make_product({.a = a, .b = b, .c = c, .adds = adds}, context_);
  scratchpad_bytes_ = std::max(scratchpad_bytes_, made->workspace_bytes());
  return made;
}

void CpuLora::plan() {
  const std::int64_t rows = d_.rows, in = d_.in_features, out = d_.out_features, all = d_.ranks(), some = group_ranks();
  const auto transposed = [&](std::int64_t r, std::int64_t c) { return Matrix{r, c, inner_, /*is_transposed=*/true}; };
  h_ = product({rows, in, inner_}, transposed(in, some), {rows, some, inner_});
  y_ = product({rows, all, inner_}, transposed(all, out), {rows, out, inner_}, /*adds=*/!is_widened());
  if (d_.inference) return;
  dh_ = product({rows, out, inner_}, {out, all, inner_}, {rows, all, inner_});
  db_ = product(transposed(out, rows), {rows, all, inner_}, {out, all});
  da_overwrite_ = product(transposed(some, rows), {rows, in, inner_}, {some, in});
  da_accumulate_ = product(transposed(some, rows), {rows, in, inner_}, {some, in}, /*adds=*/true);
  dx_ = product({rows, some, inner_}, {some, in, inner_}, {rows, in, inner_}, /*adds=*/!is_widened() && !d_.drops());
}

void CpuLora::place() {
  const std::int64_t rows = d_.rows, in = d_.in_features, out = d_.out_features, all = d_.ranks();
  WorkspacePlan workspace;
  at_.scratchpad = workspace.take(scratchpad_bytes_);
  at_.b = workspace.take(inner_bytes(out * all));
  at_.h = workspace.take(inner_bytes(rows * all));
  if (is_widened()) at_.a = workspace.take(inner_bytes(all * in));
  if (is_widened() || d_.drops()) at_.x = workspace.take(inner_bytes(rows * in));
  if (d_.drops()) {
    at_.h_part = workspace.take(inner_bytes(rows * d_.rank));
    at_.masks = workspace.take(static_cast<std::size_t>(rows * LoraDropout::of(d_).blocks));
  }
  if (is_widened()) at_.y = workspace.take(inner_bytes(rows * out));  // in backward, dy
  requirements_.forward_workspace_bytes = workspace.size_bytes();
  if (d_.inference) return;
  at_.dh = workspace.take(inner_bytes(rows * all));
  if (d_.drops()) at_.dh_part = workspace.take(inner_bytes(rows * d_.rank));
  at_.db = workspace.take(static_cast<std::size_t>(out * all) * sizeof(float));
  if (is_widened() || d_.drops()) at_.dx = workspace.take(inner_bytes(rows * in));
  requirements_.backward_workspace_bytes = workspace.size_bytes();
}

const void* CpuLora::inner(const void* data, std::int64_t n, void* workspace, std::size_t place) const {
  if (!is_widened()) return data;
  float* const wide = at<float>(workspace, place);
  widen(static_cast<const Bf16*>(data), wide, n, context_);
  return wide;
}

template <typename From, typename To>
void CpuLora::drop(const From* source, To* target, std::int64_t part, const Samples& samples, Pass pass,
                   void* workspace) const {
  using Task = DropoutTask<From, To>;
  const Task task{.dropout = LoraDropout::of(d_),
                  .width = d_.in_features,
                  .source = source,
                  .target = target,
                  .ids = samples.ids,
                  .stream = d_.parts[static_cast<std::size_t>(part)].stream,
                  .epoch = samples.scalars->epoch,
                  .masks = at<std::uint8_t>(workspace, at_.masks),
                  .draws = pass == Pass::input,
                  .accumulate = pass == Pass::gradient};
  run_ranges(part_count(context_, d_.rows * d_.in_features * 8), d_.rows, [&](Range range) {
    LOCKSTEP_DISPATCH(drop_rows<Task>)(task, range);
  });
}

const void* CpuLora::dropped(const void* x, std::int64_t part, const Samples& samples, void* workspace) const {
  if (!d_.drops()) return inner(x, d_.rows * d_.in_features, workspace, at_.x);
  with_elements(d_.dtype, [&](auto element) {
    with_elements(inner_, [&](auto as_multiplied) {
      drop(static_cast<const decltype(element)*>(x), at<decltype(as_multiplied)>(workspace, at_.x), part, samples,
           Pass::input, workspace);
    });
  });
  return at(workspace, at_.x);
}

/// Lays out B as (out, parts * rank): the B of each part, times the scale, in its rows and columns.
void CpuLora::lay_out_b(const void* b, void* workspace) const {
  std::memset(at(workspace, at_.b), 0, inner_bytes(d_.out_features * d_.ranks()));
  with_elements(d_.dtype, [&](auto element) {
    with_elements(inner_, [&](auto as_multiplied) {
      using To = decltype(as_multiplied);
      const auto* from = static_cast<const decltype(element)*>(b);
      To* const all = at<To>(workspace, at_.b);
      for (std::int64_t p = 0; p < n_parts(); ++p) {
        const LoraPart& part = d_.parts[static_cast<std::size_t>(p)];
        for (std::int64_t c = 0; c < part.columns; ++c, from += d_.rank) {
          To* const to = all + (part.begin + c) * d_.ranks() + p * d_.rank;
          for (std::int64_t r = 0; r < d_.rank; ++r) to[r] = from_float<To>(d_.scale * to_float(from[r]));
        }
      }
    });
  });
}

const void* CpuLora::rows_of_a(const void* a, std::int64_t group) const {
  return static_cast<const std::byte*>(a) + inner_bytes(group * group_ranks() * d_.in_features);
}

/// Adds n fp32 values in the workspace to `sum`.
void CpuLora::add_wide_to(void* sum, std::size_t place, std::int64_t n, void* workspace) const {
  run_ranges(part_count(context_, 6 * n), n, [&](Range range) {
    LOCKSTEP_DISPATCH(add_wide)(at<float>(workspace, place), static_cast<Bf16*>(sum), range);
  });
}

/// Copies `rank` columns of each row.
void CpuLora::copy_columns(const void* from, std::int64_t from_row, void* to, std::int64_t to_row) const {
  for (std::int64_t row = 0; row < d_.rows; ++row)
    std::memcpy(static_cast<std::byte*>(to) + inner_bytes(row * to_row),
                static_cast<const std::byte*>(from) + inner_bytes(row * from_row), inner_bytes(d_.rank));
}

/// Computes h of the parts of a group, without the scale. `x` is the result of dropped(), and `a` has the inner type.
void CpuLora::hidden(std::int64_t group, const void* x, const void* a, void* workspace) {
  void* const h = at(workspace, d_.drops() ? at_.h_part : at_.h);
  h_->execute({.a = x, .b = rows_of_a(a, group), .c = h, .workspace = at(workspace, at_.scratchpad)});
  if (d_.drops()) copy_columns(h, d_.rank, at<std::byte>(workspace, at_.h) + inner_bytes(group * d_.rank), d_.ranks());
}

void CpuLora::run_forward(const Forward& args, const OpMemory& memory, Stream&) {
  void* const workspace = memory.workspace;
  const void* const a = inner(args.a, d_.ranks() * d_.in_features, workspace, at_.a);
  lay_out_b(args.b, workspace);
  for (std::int64_t group = 0; group < n_groups(); ++group)
    hidden(group, dropped(args.x, group, args.samples, workspace), a, workspace);
  void* const y = is_widened() ? at(workspace, at_.y) : args.y;
  y_->execute(
      {.a = at(workspace, at_.h), .b = at(workspace, at_.b), .c = y, .workspace = at(workspace, at_.scratchpad)});
  if (!is_widened()) return;
  add_wide_to(args.y, at_.y, d_.rows * d_.out_features, workspace);
}

/// Stores dB of each part: its rows and columns of dy^T h (out, parts * rank), times the scale.
void CpuLora::store_db(const float* all, float* db, GradientMode mode) const {
  for (std::int64_t p = 0; p < n_parts(); ++p) {
    const LoraPart& part = d_.parts[static_cast<std::size_t>(p)];
    for (std::int64_t c = 0; c < part.columns; ++c, db += d_.rank) {
      const float* const from = all + (part.begin + c) * d_.ranks() + p * d_.rank;
      for (std::int64_t r = 0; r < d_.rank; ++r)
        db[r] = (mode == GradientMode::accumulate ? db[r] : 0.0f) + d_.scale * from[r];
    }
  }
}

void CpuLora::run_backward(const Backward& args, const OpMemory& memory, Stream&) {
  require(!d_.inference, ErrorCode::internal, "{} was planned for inference, and backward was called", text(d_));
  void* const workspace = memory.workspace;
  void* const scratchpad = at(workspace, at_.scratchpad);
  const bool wants_parameters = args.parameter_mode != GradientMode::skip;
  if (!wants_parameters && args.dx == nullptr) return;
  const void* const a = inner(args.a, d_.ranks() * d_.in_features, workspace, at_.a);
  lay_out_b(args.b, workspace);
  const void* const dy = inner(args.dy, d_.rows * d_.out_features, workspace, at_.y);
  void* const dh = at(workspace, at_.dh);
  dh_->execute({.a = dy, .b = at(workspace, at_.b), .c = dh, .workspace = scratchpad});
  for (std::int64_t group = 0; group < n_groups(); ++group) {
    void* const own = d_.drops() ? at(workspace, at_.dh_part) : dh;
    if (d_.drops()) copy_columns(static_cast<std::byte*>(dh) + inner_bytes(group * d_.rank), d_.ranks(), own, d_.rank);
    const void* const x = wants_parameters || d_.drops() ? dropped(args.x, group, args.samples, workspace) : nullptr;
    if (wants_parameters) {
      hidden(group, x, a, workspace);
      const bool adds = args.parameter_mode == GradientMode::accumulate;
      (adds ? *da_accumulate_ : *da_overwrite_)
          .execute({.a = own, .b = x, .c = args.da + group * group_ranks() * d_.in_features, .workspace = scratchpad});
    }
    if (args.dx != nullptr) {
      const Backward with_a{.a = rows_of_a(a, group), .dx = args.dx, .samples = args.samples};
      data_gradient(with_a, group, own, workspace);
    }
  }
  if (!wants_parameters) return;
  float* const all = at<float>(workspace, at_.db);
  db_->execute({.a = dy, .b = at(workspace, at_.h), .c = all, .workspace = scratchpad});
  store_db(all, args.db, args.parameter_mode);
}

/// `args` has A of the group in the inner type, dx, and the samples.
void CpuLora::data_gradient(const Backward& args, std::int64_t group, const void* dh, void* workspace) {
  const bool is_direct = !is_widened() && !d_.drops();
  void* const dx = is_direct ? args.dx : at(workspace, at_.dx);
  dx_->execute({.a = dh, .b = args.a, .c = dx, .workspace = at(workspace, at_.scratchpad)});
  if (is_direct) return;
  if (!d_.drops()) return add_wide_to(args.dx, at_.dx, d_.rows * d_.in_features, workspace);
  with_elements(d_.dtype, [&](auto element) {
    with_elements(inner_, [&](auto as_multiplied) {
      drop(at<const decltype(as_multiplied)>(workspace, at_.dx), static_cast<decltype(element)*>(args.dx), group,
           args.samples, Pass::gradient, workspace);
    });
  });
}

}  // namespace

std::unique_ptr<Lora> make_lora(const LoraDescription& d, const CpuContext& context) {
  require_float_or_bf16(d.dtype, "an adapter");
  return std::make_unique<CpuLora>(d, context);
}

}  // namespace lockstep::cpu

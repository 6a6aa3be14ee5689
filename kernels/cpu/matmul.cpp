// y (M, out) = f(z), z = x (M, in) * weight^T (in, out) + bias (out), all row-major. y is overwritten; with gelu and
// silu z is kept for backward:
//   dz = f'(z) dy,  dx = dz * weight,  dweight = dz^T * x,  dbias = sum over rows of dz; each overwritten, added to, or
//   skipped
// x, y, z, their gradients, weight and bias are fp32 or bf16; gradients of parameters are fp32, and so are all sums.
// oneDNN's matmul packs blocks of row-major operands itself while they are in the cache, adds to a previous gradient in
// the same pass, and needs no copies. Its inner product with weights that are packed once per step is 4 % faster
// forward, but 2 to 8 % slower in the gradients, and the gradient of the packed weights must be unpacked (SmolLM-135M,
// 256 rows, one core with AVX-512).
// A processor without instructions for bf16 multiplies in fp32 ("inner" below), and each call then widens its inputs.
#include <omp.h>

#include <algorithm>
#include <array>
#include <memory>

#include "kernels/cpu/activation.h"
#include "kernels/cpu/base/bf16.h"
#include "kernels/cpu/base/context.h"
#include "kernels/cpu/base/onednn.h"
#include "kernels/cpu/base/parallel.h"
#include "kernels/cpu/base/workspace.h"
#include "lockstep/ops/matmul.h"

namespace lockstep::cpu {
namespace {

using dnnl::memory;
using Type = memory::data_type;

std::string text(const MatmulDescription& d) {
  return fmt::format("matmul ({}, {}) -> {}{}{}", d.rows, d.in_features, d.out_features, d.bias ? " with bias" : "",
                     d.dtype == DType::fp32 ? "" : fmt::format(", {}", name(d.dtype)));
}

memory::desc matrix(std::int64_t rows, std::int64_t columns, Type type) {
  return {{rows, columns}, type, memory::format_tag::ab};
}
/// The transpose of a row-major (columns, rows).
memory::desc transposed(std::int64_t rows, std::int64_t columns, Type type) {
  return {{rows, columns}, type, memory::format_tag::ba};
}

/// One product of oneDNN: target = a * b (+ bias), or target += a * b.
struct Product {
  PlannedPrimitive overwrite, accumulate;  // the second is empty where it was not asked for
  std::string algorithm;
  std::size_t scratchpad_bytes = 0;
};

enum class Targets : std::uint8_t { overwritten, also_added_to };

Product plan_product(const memory::desc& a, const memory::desc& b, const memory::desc& bias, const memory::desc& target,
                     Targets targets) {
  Product product;
  const auto plan = [&](bool adds) {
    dnnl::primitive_attr attributes = user_scratchpad();
    if (adds) {
      dnnl::post_ops sum;
      sum.append_sum(1.0f);
      attributes.set_post_ops(sum);
    }
    using Choice = dnnl::matmul::primitive_desc;
    const Choice chosen = bias.get_size() > 0 ? Choice(onednn_engine(), a, b, bias, target, attributes)
                                              : Choice(onednn_engine(), a, b, target, attributes);
    if (!adds) product.algorithm = chosen.impl_info_str();
    product.scratchpad_bytes = std::max(product.scratchpad_bytes, chosen.scratchpad_desc().get_size());
    return PlannedPrimitive(dnnl::matmul(chosen), {{DNNL_ARG_SRC, a},
                                                   {DNNL_ARG_WEIGHTS, b},
                                                   {DNNL_ARG_BIAS, bias},
                                                   {DNNL_ARG_DST, target},
                                                   {DNNL_ARG_SCRATCHPAD, chosen.scratchpad_desc()}});
  };
  product.overwrite = plan(false);
  if (targets == Targets::also_added_to) product.accumulate = plan(true);
  return product;
}

class CpuMatmul final : public Matmul {
 public:
  CpuMatmul(const MatmulDescription& description, const CpuContext& context);

  OpNeeds needs() const override { return needs_; }
  std::string describe() const override;
  std::shared_ptr<const ParameterLayout> weight_layout() const override { return layout_; }
  void run_forward(const Forward& args, const OpMemory& memory, Stream& stream) override;
  void run_backward(const Backward& args, const OpMemory& memory, Stream& stream) override;

 private:
  /// A tensor that is multiplied in another type than it is stored in. Empty where the types agree.
  struct Conversion {
    PlannedReorder reorder;
    std::size_t inner_bytes = 0;
    std::size_t at = 0;  // of the inner form, in the workspace
  };

  void plan();
  void place();
  bool is_widened() const { return inner_ != onednn_type(d_.dtype); }
  bool has_activation() const { return d_.activation != ActivationFunction::none; }
  bool keeps_z() const { return has_activation() && d_.activation != ActivationFunction::relu && !d_.inference; }
  std::size_t y_bytes() const { return static_cast<std::size_t>(d_.rows * d_.out_features) * size_bytes(d_.dtype); }
  std::size_t x_bytes() const { return static_cast<std::size_t>(d_.rows * d_.in_features) * size_bytes(d_.dtype); }
  Conversion conversion(const memory::desc& outer, const memory::desc& inner);
  /// `data`, or its inner form in the workspace.
  const void* converted(Conversion& conversion, const void* data, void* workspace);
  void data_gradient(const Backward& args, const void* inner_dz, void* workspace);

  MatmulDescription d_;
  CpuContext context_;
  Type inner_ = Type::f32;  // as they are multiplied
  std::shared_ptr<const OnednnLayout> layout_;
  Product forward_, data_, weight_;
  Conversion x_in_, weight_in_, bias_in_, dz_in_, y_out_, dx_out_;
  std::size_t scratchpad_bytes_ = 0;
  OpNeeds needs_;
  struct Offsets {
    std::size_t scratchpad = 0, dz = 0, dx = 0;
  } at_;
};

CpuMatmul::CpuMatmul(const MatmulDescription& description, const CpuContext& context)
    : d_(description), context_(context) {
  require(d_.dtype == DType::fp32 || d_.dtype == DType::bf16, ErrorCode::not_supported,
          "{}: the cpu backend computes in fp32 or bf16, not in {}", text(d_), name(d_.dtype));
  require(d_.rows > 0 && d_.in_features > 0 && d_.out_features > 0, ErrorCode::op_description,
          "{}: rows, in_features and out_features must be positive", text(d_));
  layout_ = canonical_layout(d_.weight_layout, {d_.out_features, d_.in_features});
  plan_with_onednn(text(d_), [&] { plan(); });
  place();
}

CpuMatmul::Conversion CpuMatmul::conversion(const memory::desc& outer, const memory::desc& inner) {
  if (!is_widened()) return {};
  Conversion made{.reorder = PlannedReorder(outer, inner), .inner_bytes = inner.get_size()};
  scratchpad_bytes_ = std::max(scratchpad_bytes_, made.reorder.scratchpad_bytes());
  return made;
}

void CpuMatmul::plan() {
  const std::int64_t rows = d_.rows, in = d_.in_features, out = d_.out_features;
  const Type outer = onednn_type(d_.dtype);
  inner_ = onednn_has(dnnl::cpu_isa::avx512_core_bf16) ? outer : Type::f32;
  const memory::desc x = matrix(rows, in, inner_), y = matrix(rows, out, inner_), weight = matrix(out, in, inner_);
  const memory::desc bias = d_.bias ? matrix(1, out, inner_) : memory::desc();
  forward_ = plan_product(x, transposed(in, out, inner_), bias, y, Targets::overwritten);
  x_in_ = conversion(matrix(rows, in, outer), x);
  weight_in_ = conversion(matrix(out, in, outer), weight);
  if (d_.bias) bias_in_ = conversion(matrix(1, out, outer), bias);
  y_out_ = conversion(y, matrix(rows, out, outer));
  if (!d_.inference) {
    weight_ = plan_product(transposed(out, rows, inner_), x, {}, matrix(out, in, Type::f32), Targets::also_added_to);
    dz_in_ = conversion(matrix(rows, out, outer), y);
    if (d_.input_gradient) {
      data_ = plan_product(y, weight, {}, x, Targets::also_added_to);
      dx_out_ = conversion(x, matrix(rows, in, outer));
    }
  }
  for (const Product* product : {&forward_, &weight_, &data_})
    scratchpad_bytes_ = std::max(scratchpad_bytes_, product->scratchpad_bytes);
}

/// Forward and backward run at different times, and use the same places.
void CpuMatmul::place() {
  WorkspacePlan workspace;
  at_.scratchpad = workspace.take(scratchpad_bytes_);
  if (is_widened()) {
    for (Conversion* c : {&x_in_, &weight_in_, &bias_in_, &y_out_}) c->at = workspace.take(c->inner_bytes);
    // Of the same sizes, and y and x are not used any more where these are written.
    dz_in_.at = y_out_.at;
    dx_out_.at = x_in_.at;
  }
  needs_.forward_workspace_bytes = workspace.size_bytes();
  if (keeps_z()) needs_.saved_bytes = y_bytes();
  if (d_.inference) return;
  if (has_activation()) at_.dz = workspace.take(y_bytes());
  if (is_widened() && d_.input_gradient) at_.dx = workspace.take(x_bytes());
  needs_.backward_workspace_bytes = workspace.size_bytes();
}

std::string CpuMatmul::describe() const {
  std::string out = fmt::format("{}: forward {}", text(d_), forward_.algorithm);
  if (!data_.algorithm.empty()) out += fmt::format(", data gradient {}", data_.algorithm);
  if (!weight_.algorithm.empty()) out += fmt::format(", weight gradient {}", weight_.algorithm);
  if (d_.bias) out += "; bias fused";
  if (has_activation()) out += fmt::format("; {} in a pass", name(d_.activation));
  if (is_widened()) out += "; multiplied in fp32";
  return out;
}

const void* CpuMatmul::converted(Conversion& conversion, const void* data, void* workspace) {
  if (!conversion.reorder || data == nullptr) return data;
  void* const inner = at<void>(workspace, conversion.at);
  conversion.reorder.execute(data, inner, at<void>(workspace, at_.scratchpad));
  return inner;
}

void CpuMatmul::run_forward(const Forward& args, const OpMemory& memory, Stream&) {
  omp_set_num_threads(context_.threads);
  void* const workspace = memory.workspace;
  void* const z = keeps_z() ? memory.saved : args.y;
  void* const inner_z = is_widened() ? at<void>(workspace, y_out_.at) : z;
  forward_.overwrite.execute({{DNNL_ARG_SRC, converted(x_in_, args.x, workspace)},
                              {DNNL_ARG_WEIGHTS, converted(weight_in_, args.weight, workspace)},
                              {DNNL_ARG_BIAS, converted(bias_in_, args.bias, workspace)},
                              {DNNL_ARG_DST, inner_z},
                              {DNNL_ARG_SCRATCHPAD, at<void>(workspace, at_.scratchpad)}});
  if (is_widened()) y_out_.reorder.execute(inner_z, z, at<void>(workspace, at_.scratchpad));
  if (has_activation()) activate(d_.activation, d_.dtype, z, args.y, d_.rows * d_.out_features, context_);
}

/// dbias (+)= the sums of the columns of dz (rows, columns). Threads divide the columns; rows are added in their order.
void add_columns(DType dtype, const void* dz, std::int64_t rows, std::int64_t columns, float* dbias, GradientMode mode,
                 const CpuContext& context) {
  constexpr std::int64_t kBlock = 64;
  const std::int64_t blocks = (columns + kBlock - 1) / kBlock;
  with_elements(dtype, [&](auto element) {
    using E = decltype(element);
    const int parts = part_count(context, rows * columns * static_cast<std::int64_t>(sizeof(E)));
    run_parts(parts, [&](int part) {
      const Range range = part_of(blocks, part, parts);
      for (std::int64_t block = range.begin; block < range.end; ++block) {
        const std::int64_t first = block * kBlock, n = std::min(kBlock, columns - first);
        std::array<float, kBlock> sums{};
        for (std::int64_t row = 0; row < rows; ++row) {
          const E* const values = static_cast<const E*>(dz) + row * columns + first;
          for (std::int64_t i = 0; i < n; ++i) sums[static_cast<std::size_t>(i)] += to_float(values[i]);
        }
        for (std::int64_t i = 0; i < n; ++i) {
          const float sum = sums[static_cast<std::size_t>(i)];
          dbias[first + i] = mode == GradientMode::accumulate ? dbias[first + i] + sum : sum;
        }
      }
    });
  });
}

void CpuMatmul::run_backward(const Backward& args, const OpMemory& memory, Stream&) {
  require(!d_.inference, ErrorCode::internal, "{} was planned for inference, and backward was called", text(d_));
  omp_set_num_threads(context_.threads);
  void* const workspace = memory.workspace;
  const void* dz = args.dy;
  if (has_activation()) {
    void* const made = at<void>(workspace, at_.dz);
    activation_gradient(d_.activation, d_.dtype, keeps_z() ? memory.saved : args.y, args.dy, made, false,
                        d_.rows * d_.out_features, context_);
    dz = made;
  }
  const bool wants_parameters = args.parameter_mode != GradientMode::skip;
  const bool wants_dx = d_.input_gradient && args.dx_mode != GradientMode::skip;
  if (!wants_parameters && !wants_dx) return;
  const void* const inner_dz = converted(dz_in_, dz, workspace);
  if (wants_parameters) {
    PlannedPrimitive& product =
        args.parameter_mode == GradientMode::accumulate ? weight_.accumulate : weight_.overwrite;
    product.execute({{DNNL_ARG_SRC, inner_dz},
                     {DNNL_ARG_WEIGHTS, converted(x_in_, args.x, workspace)},
                     {DNNL_ARG_DST, args.dweight},
                     {DNNL_ARG_SCRATCHPAD, at<void>(workspace, at_.scratchpad)}});
    if (d_.bias) add_columns(d_.dtype, dz, d_.rows, d_.out_features, args.dbias, args.parameter_mode, context_);
  }
  if (wants_dx) data_gradient(args, inner_dz, workspace);
}

void CpuMatmul::data_gradient(const Backward& args, const void* inner_dz, void* workspace) {
  const bool accumulate = args.dx_mode == GradientMode::accumulate;
  void* const scratchpad = at<void>(workspace, at_.scratchpad);
  void* const inner_dx = is_widened() ? at<void>(workspace, dx_out_.at) : args.dx;
  // What is added to is in the outer type.
  PlannedPrimitive& product = accumulate && !is_widened() ? data_.accumulate : data_.overwrite;
  product.execute({{DNNL_ARG_SRC, inner_dz},
                   {DNNL_ARG_WEIGHTS, converted(weight_in_, args.weight, workspace)},
                   {DNNL_ARG_DST, inner_dx},
                   {DNNL_ARG_SCRATCHPAD, scratchpad}});
  if (!is_widened()) return;
  void* const dx = accumulate ? at<void>(workspace, at_.dx) : args.dx;
  dx_out_.reorder.execute(inner_dx, dx, scratchpad);
  if (accumulate) add_into(d_.dtype, args.dx, dx, static_cast<std::size_t>(d_.rows * d_.in_features), context_);
}

}  // namespace

std::unique_ptr<Matmul> make_matmul(const MatmulDescription& description, const CpuContext& context) {
  omp_set_num_threads(context.threads);  // oneDNN plans for as many
  return std::make_unique<CpuMatmul>(description, context);
}

}  // namespace lockstep::cpu

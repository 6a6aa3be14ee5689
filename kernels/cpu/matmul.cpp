// y (M, out) = f(z), z = x (M, in) * weight^T (in, out) + bias (out), row-major except the weight, which is in oneDNN's
// layout. y is overwritten; with gelu and silu z is kept for backward:
//   dz = f'(z) dy,  dx = dz * weight,  dweight = dz^T * x,  dbias = sum over rows of dz; each overwritten, added to, or
//   skipped
// x, y, z, their gradients, weight and bias are fp32 or bf16; gradients of parameters are fp32, and so are all sums.
// Each call reorders the weight, in its type, where oneDNN's kernel is fast with another layout. A processor without
// instructions for bf16 multiplies in fp32 ("inner" below), and each call then widens its inputs.
#include <omp.h>

#include <cstring>
#include <memory>
#include <optional>

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
using Tag = memory::format_tag;
using ForwardChoice = dnnl::inner_product_forward::primitive_desc;
using DataChoice = dnnl::inner_product_backward_data::primitive_desc;
using WeightChoice = dnnl::inner_product_backward_weights::primitive_desc;

std::string text(const MatmulDescription& d) {
  return fmt::format("matmul ({}, {}) -> {}{}{}", d.rows, d.in_features, d.out_features, d.bias ? " with bias" : "",
                     d.dtype == DType::fp32 ? "" : fmt::format(", {}", name(d.dtype)));
}

using Type = memory::data_type;

memory::desc matrix(std::int64_t rows, std::int64_t columns, Type type = Type::f32, Tag tag = Tag::ab) {
  return {{rows, columns}, type, tag};
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
  void choose();
  void plan_forward();
  void plan_backward();
  bool has_activation() const { return description_.activation != ActivationFunction::none; }
  bool keeps_z() const {
    return has_activation() && description_.activation != ActivationFunction::relu && !description_.inference;
  }
  void parameter_gradient(const Backward& args, const void* inner_dz, void* workspace);
  void data_gradient(const Backward& args, const void* inner_dz, void* workspace);

  MatmulDescription description_;
  CpuContext context_;
  memory::desc x_, y_, weights_, bias_;          // bias_ is empty without one
  memory::desc inner_x_, inner_y_, inner_bias_;  // as they are multiplied
  memory::desc dbias_;
  std::shared_ptr<const OnednnLayout> layout_;
  ForwardChoice forward_choice_;
  std::optional<DataChoice> data_choice_;
  std::optional<WeightChoice> weight_choice_;
  OpNeeds needs_;

  PlannedPrimitive forward_, data_, weight_;
  // Empty where the layouts and the types agree.
  PlannedReorder forward_weights_, data_weights_, dweight_out_, bias_to_inner_, x_to_inner_, y_from_inner_,
      dz_to_inner_, dx_from_inner_;

  struct Offsets {
    std::size_t forward_weights = 0, forward_bias = 0, forward_x = 0, forward_y = 0, forward_scratchpad = 0;
    std::size_t dz = 0, inner_dz = 0;
    std::size_t x = 0, inner_dweight = 0, dweight = 0, dbias = 0, weight_scratchpad = 0;
    std::size_t data_weights = 0, inner_dx = 0, dx = 0, data_scratchpad = 0;
  } at_;
};

CpuMatmul::CpuMatmul(const MatmulDescription& description, const CpuContext& context)
    : description_(description), context_(context) {
  const MatmulDescription& d = description_;
  require(d.dtype == DType::fp32 || d.dtype == DType::bf16, ErrorCode::not_supported,
          "{}: the cpu backend computes in fp32 or bf16, not in {}", text(d), name(d.dtype));
  require(d.rows > 0 && d.in_features > 0 && d.out_features > 0, ErrorCode::op_description,
          "{}: rows, in_features and out_features must be positive", text(d));
  plan_with_onednn(text(d), [&] {
    choose();
    plan_forward();
    if (!description_.inference) plan_backward();
  });
}

void CpuMatmul::choose() {
  const MatmulDescription& d = description_;
  const Type outer = onednn_type(d.dtype);
  const Type inner = onednn_has(dnnl::cpu_isa::avx512_core_bf16) ? outer : Type::f32;
  x_ = matrix(d.rows, d.in_features, outer);
  y_ = matrix(d.rows, d.out_features, outer);
  inner_x_ = matrix(d.rows, d.in_features, inner);
  inner_y_ = matrix(d.rows, d.out_features, inner);
  if (d.bias) {
    bias_ = {{d.out_features}, outer, Tag::a};
    inner_bias_ = {{d.out_features}, inner, Tag::a};
    dbias_ = {{d.out_features}, Type::f32, Tag::a};
  }
  const memory::desc any = matrix(d.out_features, d.in_features, inner, Tag::any);
  const memory::desc any_gradient = matrix(d.out_features, d.in_features, Type::f32, Tag::any);
  const dnnl::engine& engine = onednn_engine();
  const dnnl::primitive_attr attributes = user_scratchpad();

  const auto kind = d.inference ? dnnl::prop_kind::forward_inference : dnnl::prop_kind::forward_training;
  const auto forward = [&](const memory::desc& w, bool allow_empty) {
    return d.bias ? ForwardChoice(engine, kind, inner_x_, w, inner_bias_, inner_y_, attributes, allow_empty)
                  : ForwardChoice(engine, kind, inner_x_, w, inner_y_, attributes, allow_empty);
  };
  layout_ = as_onednn_layout(d.weight_layout, {d.out_features, d.in_features});
  const memory::desc canonical = matrix(d.out_features, d.in_features);
  // In bf16 the kernels of forward and data gradient want different layouts (pairs of one dimension or of the other),
  // so that reorders remain in any case.
  if (!layout_ && inner != Type::f32) layout_ = std::make_shared<OnednnLayout>(canonical, canonical);
  forward_choice_ = layout_ ? choose_weights(layout_->desc(inner), any, forward) : forward(any, false);
  if (!layout_) layout_ = std::make_shared<OnednnLayout>(canonical, forward_choice_.weights_desc());
  weights_ = layout_->desc(outer);
  if (d.inference) return;

  if (d.input_gradient)
    data_choice_ = choose_weights(layout_->desc(inner), any, [&](const memory::desc& w, bool allow_empty) {
      return DataChoice(engine, inner_x_, w, inner_y_, forward_choice_, attributes, allow_empty);
    });
  weight_choice_ = choose_weights(layout_->desc(), any_gradient, [&](const memory::desc& w, bool allow_empty) {
    return d.bias ? WeightChoice(engine, inner_x_, w, dbias_, inner_y_, forward_choice_, attributes, allow_empty)
                  : WeightChoice(engine, inner_x_, w, inner_y_, forward_choice_, attributes, allow_empty);
  });
}

void CpuMatmul::plan_forward() {
  const memory::desc scratchpad = forward_choice_.scratchpad_desc();
  forward_ = PlannedPrimitive(dnnl::inner_product_forward(forward_choice_),
                              {{DNNL_ARG_SRC, inner_x_},
                               {DNNL_ARG_WEIGHTS, forward_choice_.weights_desc()},
                               {DNNL_ARG_BIAS, inner_bias_},
                               {DNNL_ARG_DST, inner_y_},
                               {DNNL_ARG_SCRATCHPAD, scratchpad}});
  forward_weights_ = PlannedReorder(weights_, forward_choice_.weights_desc());
  if (description_.bias) bias_to_inner_ = PlannedReorder(bias_, inner_bias_);
  x_to_inner_ = PlannedReorder(x_, inner_x_);
  y_from_inner_ = PlannedReorder(inner_y_, y_);
  WorkspacePlan workspace;
  if (forward_weights_) at_.forward_weights = workspace.take(forward_choice_.weights_desc().get_size());
  if (bias_to_inner_) at_.forward_bias = workspace.take(inner_bias_.get_size());
  if (x_to_inner_) at_.forward_x = workspace.take(inner_x_.get_size());
  if (y_from_inner_) at_.forward_y = workspace.take(inner_y_.get_size());
  at_.forward_scratchpad = workspace.take(
      std::max({scratchpad.get_size(), forward_weights_.scratchpad_bytes(), bias_to_inner_.scratchpad_bytes(),
                x_to_inner_.scratchpad_bytes(), y_from_inner_.scratchpad_bytes()}));
  needs_.forward_workspace_bytes = workspace.size_bytes();
  if (keeps_z()) needs_.saved_bytes = y_.get_size();
}

void CpuMatmul::plan_backward() {
  WorkspacePlan workspace;
  dz_to_inner_ = PlannedReorder(y_, inner_y_);
  if (has_activation()) at_.dz = workspace.take(y_.get_size());
  if (dz_to_inner_) at_.inner_dz = workspace.take(inner_y_.get_size());
  const std::size_t behind_dz = workspace.mark();
  const memory::desc dweight = weight_choice_->diff_weights_desc(), scratchpad = weight_choice_->scratchpad_desc();
  weight_ =
      PlannedPrimitive(dnnl::inner_product_backward_weights(*weight_choice_), {{DNNL_ARG_SRC, inner_x_},
                                                                               {DNNL_ARG_DIFF_DST, inner_y_},
                                                                               {DNNL_ARG_DIFF_WEIGHTS, dweight},
                                                                               {DNNL_ARG_DIFF_BIAS, dbias_},
                                                                               {DNNL_ARG_SCRATCHPAD, scratchpad}});
  dweight_out_ = PlannedReorder(dweight, layout_->desc());
  if (x_to_inner_) at_.x = workspace.take(inner_x_.get_size());
  at_.inner_dweight = workspace.take(dweight.get_size());
  if (dweight_out_) at_.dweight = workspace.take(layout_->desc().get_size());
  if (description_.bias) at_.dbias = workspace.take(dbias_.get_size());
  at_.weight_scratchpad = workspace.take(std::max({scratchpad.get_size(), dweight_out_.scratchpad_bytes(),
                                                   x_to_inner_.scratchpad_bytes(), dz_to_inner_.scratchpad_bytes()}));

  if (data_choice_) {
    workspace.rewind(behind_dz);
    const memory::desc weights = data_choice_->weights_desc(), data_scratchpad = data_choice_->scratchpad_desc();
    data_ =
        PlannedPrimitive(dnnl::inner_product_backward_data(*data_choice_), {{DNNL_ARG_DIFF_DST, inner_y_},
                                                                            {DNNL_ARG_WEIGHTS, weights},
                                                                            {DNNL_ARG_DIFF_SRC, inner_x_},
                                                                            {DNNL_ARG_SCRATCHPAD, data_scratchpad}});
    data_weights_ = PlannedReorder(weights_, weights);
    if (data_weights_) at_.data_weights = workspace.take(weights.get_size());
    dx_from_inner_ = PlannedReorder(inner_x_, x_);
    if (dx_from_inner_) at_.inner_dx = workspace.take(inner_x_.get_size());
    at_.dx = workspace.take(x_.get_size());
    at_.data_scratchpad =
        workspace.take(std::max({data_scratchpad.get_size(), data_weights_.scratchpad_bytes(),
                                 dx_from_inner_.scratchpad_bytes(), dz_to_inner_.scratchpad_bytes()}));
  }
  needs_.backward_workspace_bytes = workspace.size_bytes();
}

std::string CpuMatmul::describe() const {
  const auto reordered = [](const PlannedReorder& reorder) { return reorder ? " (weights reordered)" : ""; };
  std::string out = fmt::format("{}, weights {}: forward {}{}", text(description_), layout_->describe(),
                                forward_choice_.impl_info_str(), reordered(forward_weights_));
  if (data_choice_) out += fmt::format(", data gradient {}{}", data_choice_->impl_info_str(), reordered(data_weights_));
  if (weight_choice_)
    out += fmt::format(", weight gradient {}{}", weight_choice_->impl_info_str(), reordered(dweight_out_));
  if (description_.bias) out += "; bias fused";
  if (description_.activation != ActivationFunction::none)
    out += fmt::format("; {} in a pass", name(description_.activation));
  if (x_to_inner_) out += "; multiplied in fp32";
  return out;
}

void CpuMatmul::run_forward(const Forward& args, const OpMemory& memory, Stream&) {
  omp_set_num_threads(context_.threads);
  float* const scratchpad = at(memory.workspace, at_.forward_scratchpad);
  const void* weights = args.weight;
  if (forward_weights_) {
    void* const inner = at(memory.workspace, at_.forward_weights);
    forward_weights_.execute(weights, inner, scratchpad);
    weights = inner;
  }
  const void* bias = args.bias;
  if (bias_to_inner_) {
    void* const inner = at(memory.workspace, at_.forward_bias);
    bias_to_inner_.execute(bias, inner, scratchpad);
    bias = inner;
  }
  const void* x = args.x;
  if (x_to_inner_) {
    void* const inner = at(memory.workspace, at_.forward_x);
    x_to_inner_.execute(x, inner, scratchpad);
    x = inner;
  }
  void* const z = keeps_z() ? memory.saved : args.y;
  void* const inner_z = y_from_inner_ ? at(memory.workspace, at_.forward_y) : z;
  forward_.execute({{DNNL_ARG_SRC, x},
                    {DNNL_ARG_WEIGHTS, weights},
                    {DNNL_ARG_BIAS, bias},
                    {DNNL_ARG_DST, inner_z},
                    {DNNL_ARG_SCRATCHPAD, scratchpad}});
  if (y_from_inner_) y_from_inner_.execute(inner_z, z, scratchpad);
  const MatmulDescription& d = description_;
  if (has_activation()) activate(d.activation, d.dtype, z, args.y, d.rows * d.out_features, context_);
}

void CpuMatmul::run_backward(const Backward& args, const OpMemory& memory, Stream&) {
  require(!description_.inference, ErrorCode::internal, "{} was planned for inference, and backward was called",
          text(description_));
  omp_set_num_threads(context_.threads);
  const MatmulDescription& d = description_;
  const void* dz = args.dy;
  if (has_activation()) {
    void* const made = at(memory.workspace, at_.dz);
    activation_gradient(d.activation, d.dtype, keeps_z() ? memory.saved : args.y, args.dy, made, false,
                        d.rows * d.out_features, context_);
    dz = made;
  }
  const bool wants_parameters = args.parameter_mode != GradientMode::skip;
  const bool wants_dx = data_choice_ && args.dx_mode != GradientMode::skip;
  if (dz_to_inner_ && (wants_parameters || wants_dx)) {
    void* const inner = at(memory.workspace, at_.inner_dz);
    dz_to_inner_.execute(dz, inner, at(memory.workspace, wants_dx ? at_.data_scratchpad : at_.weight_scratchpad));
    dz = inner;
  }
  if (wants_parameters) parameter_gradient(args, dz, memory.workspace);
  if (wants_dx) data_gradient(args, dz, memory.workspace);
}

void CpuMatmul::parameter_gradient(const Backward& args, const void* inner_dz, void* workspace) {
  const bool accumulate = args.parameter_mode == GradientMode::accumulate;
  float* const scratchpad = at(workspace, at_.weight_scratchpad);
  float* const dbias = accumulate ? at(workspace, at_.dbias) : args.dbias;
  float* const dweight = !accumulate ? args.dweight : at(workspace, dweight_out_ ? at_.dweight : at_.inner_dweight);
  float* const inner = !accumulate && !dweight_out_ ? args.dweight : at(workspace, at_.inner_dweight);
  if (layout_->padded()) std::memset(dweight, 0, layout_->desc().get_size());  // the gradient of padding is zero
  const void* x = args.x;
  if (x_to_inner_) {
    void* const inner_x = at(workspace, at_.x);
    x_to_inner_.execute(x, inner_x, scratchpad);
    x = inner_x;
  }
  weight_.execute({{DNNL_ARG_SRC, x},
                   {DNNL_ARG_DIFF_DST, inner_dz},
                   {DNNL_ARG_DIFF_WEIGHTS, inner},
                   {DNNL_ARG_DIFF_BIAS, dbias},
                   {DNNL_ARG_SCRATCHPAD, scratchpad}});
  if (dweight_out_) dweight_out_.execute(inner, dweight, scratchpad);
  if (!accumulate) return;
  add_into(args.dweight, dweight, layout_->n_elements(), context_);
  if (description_.bias) add_into(args.dbias, dbias, static_cast<std::size_t>(description_.out_features), context_);
}

void CpuMatmul::data_gradient(const Backward& args, const void* inner_dz, void* workspace) {
  const bool accumulate = args.dx_mode == GradientMode::accumulate;
  float* const scratchpad = at(workspace, at_.data_scratchpad);
  const void* weights = args.weight;
  if (data_weights_) {
    void* const inner = at(workspace, at_.data_weights);
    data_weights_.execute(weights, inner, scratchpad);
    weights = inner;
  }
  void* const dx = accumulate ? at(workspace, at_.dx) : args.dx;
  void* const inner_dx = dx_from_inner_ ? at(workspace, at_.inner_dx) : dx;
  data_.execute({{DNNL_ARG_DIFF_DST, inner_dz},
                 {DNNL_ARG_WEIGHTS, weights},
                 {DNNL_ARG_DIFF_SRC, inner_dx},
                 {DNNL_ARG_SCRATCHPAD, scratchpad}});
  if (dx_from_inner_) dx_from_inner_.execute(inner_dx, dx, scratchpad);
  if (accumulate)
    add_into(description_.dtype, args.dx, dx, static_cast<std::size_t>(description_.rows * description_.in_features),
             context_);
}

}  // namespace

std::unique_ptr<Matmul> make_matmul(const MatmulDescription& description, const CpuContext& context) {
  omp_set_num_threads(context.threads);  // oneDNN plans for as many
  return std::make_unique<CpuMatmul>(description, context);
}

}  // namespace lockstep::cpu

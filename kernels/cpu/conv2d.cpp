// y[n,h,w,k] = sum_{r,s,c} z[n, h*stride+r-pad, w*stride+s-pad, c] w[k,c,r,s]: oneDNN's convolution, with passes
// over memory before it (z of a pending normalisation) and behind it (y's statistics).
//
//   forward   z: into normalization.z (`store`), `saved`, or the workspace; y: overwritten; statistics from y
//   backward  dweight from z and dy, then the data gradient, then normalize_backward makes dz and sums of it
//   kept      z in `saved` when nobody stores it, unless CpuOptions::recompute_normalized
//
// "Inner" is a tensor in the layout that oneDNN's kernel wants, where that is not the caller's (conv2d_plan.h).
#include "kernels/cpu/conv2d.h"

#include <omp.h>

#include <cstring>

#include "kernels/cpu/conv2d_plan.h"
#include "kernels/cpu/conv2d_weights.h"
#include "kernels/cpu/normalization.h"
#include "kernels/cpu/workspace.h"

namespace lockstep::cpu {
namespace {

enum class NormalizedInput : std::uint8_t {
  none,       // x is convolved as it is
  stored,     // z is in the caller's memory
  saved,      // z is kept from forward to backward
  temporary,  // z is in the workspace, and made again in backward
};

NormalizedInput where_z_lies(const Conv2dDescription& d, const CpuOptions& options) {
  if (!d.normalization) return NormalizedInput::none;
  if (d.normalization->store) return NormalizedInput::stored;
  return d.inference || options.recompute_normalized ? NormalizedInput::temporary : NormalizedInput::saved;
}

class CpuConv2d final : public Conv2d {
 public:
  CpuConv2d(const Conv2dDescription& description, const CpuContext& context, const CpuOptions& options);

  OpNeeds needs() const override { return needs_; }
  std::string describe() const override;
  std::shared_ptr<const ParameterLayout> weight_layout() const override { return plan_.layout; }
  void forward(const Forward& args, const OpMemory& memory, Stream& stream) override;
  void backward(const Backward& args, const OpMemory& memory, Stream& stream) override;

 private:
  void plan_forward();
  void plan_backward();
  void plan_weight_gradient(WorkspacePlan& workspace);

  /// What is convolved, in the caller's layout; `z_offset` is its place in this call's workspace, if it lies there.
  const float* input(const void* x, const NormalizationForward& normalization, const OpMemory& memory,
                     std::size_t z_offset, bool compute);
  void weight_gradient(const Backward& args, const float* inner_x, const float* inner_dy, void* workspace);
  /// dL/d(input) in the caller's layout, into `target` or left in the workspace; where it is.
  const float* data_gradient(const Backward& args, const float* inner_dy, float* target, void* workspace);
  void input_gradient(const Backward& args, const float* z, const float* inner_dy, void* workspace);

  Conv2dDescription description_;
  CpuContext context_;
  ConvolutionPlan plan_;
  NormalizedInput normalized_;
  Activation x_shape_, y_shape_;
  OpNeeds needs_;

  PlannedPrimitive forward_, backward_data_, backward_weights_;
  // Each is empty where both sides have one layout.
  PlannedReorder x_to_inner_, y_from_inner_, dy_to_inner_, dx_from_inner_;
  PlannedReorder forward_weights_, backward_weights_in_, dweight_out_;

  struct ForwardOffsets {
    std::size_t z = 0, inner_x = 0, inner_y = 0, weights = 0, scratchpad = 0, sums = 0;
  } forward_at_;
  struct BackwardOffsets {
    std::size_t z = 0, inner_x = 0, inner_dy = 0;
    std::size_t inner_dweight = 0, dweight = 0, weight_scratchpad = 0;
    std::size_t weights = 0, inner_dx = 0, dx = 0, data_scratchpad = 0, normalize = 0;
  } backward_at_;
};

Activation activation(const Shape& s, Layout layout) { return {s[0], s[1] * s[2], s[3], layout}; }

CpuConv2d::CpuConv2d(const Conv2dDescription& description, const CpuContext& context, const CpuOptions& options)
    : description_(description),
      context_(context),
      plan_(plan_convolution(description)),
      normalized_(where_z_lies(description, options)),
      x_shape_(activation(description.x, description.x_layout)),
      y_shape_(activation(description.y(), description.y_layout)) {
  plan_with_onednn(text(description), [&] {
    plan_forward();
    if (!description_.inference) plan_backward();
  });
  if (normalized_ == NormalizedInput::saved) needs_.saved_bytes = plan_.x.get_size();
}

void CpuConv2d::plan_forward() {
  const auto& chosen = plan_.forward;
  forward_ = PlannedPrimitive(dnnl::convolution_forward(chosen), {{DNNL_ARG_SRC, chosen.src_desc()},
                                                                  {DNNL_ARG_WEIGHTS, chosen.weights_desc()},
                                                                  {DNNL_ARG_DST, chosen.dst_desc()},
                                                                  {DNNL_ARG_SCRATCHPAD, chosen.scratchpad_desc()}});
  x_to_inner_ = PlannedReorder(plan_.x, plan_.inner_x);
  y_from_inner_ = PlannedReorder(plan_.inner_y, plan_.y);
  forward_weights_ = PlannedReorder(plan_.layout->desc(), chosen.weights_desc());

  WorkspacePlan workspace;
  if (normalized_ == NormalizedInput::temporary) forward_at_.z = workspace.take(plan_.x.get_size());
  if (x_to_inner_) forward_at_.inner_x = workspace.take(plan_.inner_x.get_size());
  if (y_from_inner_) forward_at_.inner_y = workspace.take(plan_.inner_y.get_size());
  if (forward_weights_) forward_at_.weights = workspace.take(chosen.weights_desc().get_size());
  const std::size_t mark = workspace.mark();
  forward_at_.scratchpad =
      workspace.take(std::max({chosen.scratchpad_desc().get_size(), x_to_inner_.scratchpad_bytes(),
                               y_from_inner_.scratchpad_bytes(), forward_weights_.scratchpad_bytes()}));
  workspace.rewind(mark);
  if (description_.statistics) forward_at_.sums = workspace.take(channel_sums_workspace_bytes(y_shape_, context_));
  needs_.forward_workspace_bytes = workspace.size_bytes();
}

void CpuConv2d::plan_weight_gradient(WorkspacePlan& workspace) {
  BackwardOffsets& at = backward_at_;
  if (plan_.own_weight_gradient) {
    at.weight_scratchpad = workspace.take(weight_gradient_workspace_bytes(description_));
    return;
  }
  const auto& chosen = *plan_.backward_weights;
  backward_weights_ =
      PlannedPrimitive(dnnl::convolution_backward_weights(chosen), {{DNNL_ARG_SRC, chosen.src_desc()},
                                                                    {DNNL_ARG_DIFF_DST, chosen.diff_dst_desc()},
                                                                    {DNNL_ARG_DIFF_WEIGHTS, chosen.diff_weights_desc()},
                                                                    {DNNL_ARG_SCRATCHPAD, chosen.scratchpad_desc()}});
  dweight_out_ = PlannedReorder(chosen.diff_weights_desc(), plan_.layout->desc());
  if (x_to_inner_) at.inner_x = workspace.take(plan_.inner_x.get_size());
  at.inner_dweight = workspace.take(chosen.diff_weights_desc().get_size());
  if (dweight_out_) at.dweight = workspace.take(plan_.layout->desc().get_size());
  at.weight_scratchpad = workspace.take(std::max({chosen.scratchpad_desc().get_size(), dweight_out_.scratchpad_bytes(),
                                                  x_to_inner_.scratchpad_bytes(), dy_to_inner_.scratchpad_bytes()}));
}

void CpuConv2d::plan_backward() {
  dy_to_inner_ = PlannedReorder(plan_.y, plan_.inner_y);

  BackwardOffsets& at = backward_at_;
  WorkspacePlan workspace;
  if (normalized_ == NormalizedInput::temporary) at.z = workspace.take(plan_.x.get_size());
  if (dy_to_inner_) at.inner_dy = workspace.take(plan_.inner_y.get_size());
  const std::size_t mark = workspace.mark();

  plan_weight_gradient(workspace);
  workspace.rewind(mark);

  // The data's gradient
  if (plan_.backward_data) {
    const auto& data = *plan_.backward_data;
    backward_data_ =
        PlannedPrimitive(dnnl::convolution_backward_data(data), {{DNNL_ARG_DIFF_DST, data.diff_dst_desc()},
                                                                 {DNNL_ARG_WEIGHTS, data.weights_desc()},
                                                                 {DNNL_ARG_DIFF_SRC, data.diff_src_desc()},
                                                                 {DNNL_ARG_SCRATCHPAD, data.scratchpad_desc()}});
    backward_weights_in_ = PlannedReorder(plan_.layout->desc(), data.weights_desc());
    dx_from_inner_ = PlannedReorder(plan_.inner_x, plan_.x);
    if (backward_weights_in_) at.weights = workspace.take(data.weights_desc().get_size());
    if (dx_from_inner_) at.inner_dx = workspace.take(plan_.inner_x.get_size());
    at.dx = workspace.take(plan_.x.get_size());
    const std::size_t behind = workspace.mark();
    at.data_scratchpad =
        workspace.take(std::max({data.scratchpad_desc().get_size(), backward_weights_in_.scratchpad_bytes(),
                                 dx_from_inner_.scratchpad_bytes()}));
    workspace.rewind(behind);
    if (description_.normalization)
      at.normalize = workspace.take(normalize_backward_workspace_bytes(x_shape_, context_));
  }
  needs_.backward_workspace_bytes = workspace.size_bytes();
}

std::string CpuConv2d::describe() const {
  const auto layout_name = [](Layout layout) { return layout == Layout::nhwc ? "nhwc" : "nchw16c"; };
  const auto reordered = [](const PlannedReorder& reorder) { return reorder ? " (weights reordered)" : ""; };
  std::string out = fmt::format("{}, {} to {}, weights {}: forward {}{}", text(description_),
                                layout_name(description_.x_layout), layout_name(description_.y_layout),
                                plan_.layout->describe(), plan_.forward.impl_info_str(), reordered(forward_weights_));
  if (plan_.backward_data)
    out += fmt::format(", data gradient {}{}", plan_.backward_data->impl_info_str(), reordered(backward_weights_in_));
  if (plan_.own_weight_gradient) out += ", weight gradient of small images";
  if (plan_.backward_weights)
    out += fmt::format(", weight gradient {}{}", plan_.backward_weights->impl_info_str(), reordered(dweight_out_));
  if (x_to_inner_) out += "; x reordered";
  if (y_from_inner_) out += "; y reordered";
  switch (normalized_) {
    case NormalizedInput::none:
      break;
    case NormalizedInput::stored:
      out += "; normalisation in a pass, stored";
      break;
    case NormalizedInput::saved:
      out += "; normalisation in a pass, kept for backward";
      break;
    case NormalizedInput::temporary:
      out += description_.inference ? "; normalisation in a pass" : "; normalisation in a pass, repeated in backward";
      break;
  }
  if (description_.statistics) out += "; statistics in a pass";
  return out;
}

const float* CpuConv2d::input(const void* x, const NormalizationForward& normalization, const OpMemory& memory,
                              std::size_t z_offset, bool compute) {
  float* z = nullptr;
  switch (normalized_) {
    case NormalizedInput::none:
      return static_cast<const float*>(x);
    case NormalizedInput::stored:
      z = static_cast<float*>(normalization.z);
      break;
    case NormalizedInput::saved:
      z = static_cast<float*>(memory.saved);
      break;
    case NormalizedInput::temporary:
      z = at(memory.workspace, z_offset);
      break;
  }
  if (compute)
    normalize(x_shape_, *description_.normalization, static_cast<const float*>(x), normalization, z, context_);
  return z;
}

void CpuConv2d::forward(const Forward& args, const OpMemory& memory, Stream&) {
  omp_set_num_threads(context_.threads);
  void* const workspace = memory.workspace;
  float* const scratchpad = at(workspace, forward_at_.scratchpad);

  const float* x = input(args.x, args.normalization, memory, forward_at_.z, true);
  if (x_to_inner_) {
    float* const inner_x = at(workspace, forward_at_.inner_x);
    x_to_inner_.execute(x, inner_x, scratchpad);
    x = inner_x;
  }
  const float* weights = args.weight;
  if (forward_weights_) {
    float* const inner_weights = at(workspace, forward_at_.weights);
    forward_weights_.execute(weights, inner_weights, scratchpad);
    weights = inner_weights;
  }
  void* const y = y_from_inner_ ? at(workspace, forward_at_.inner_y) : args.y;
  forward_.execute(
      {{DNNL_ARG_SRC, x}, {DNNL_ARG_WEIGHTS, weights}, {DNNL_ARG_DST, y}, {DNNL_ARG_SCRATCHPAD, scratchpad}});
  if (y_from_inner_) y_from_inner_.execute(y, args.y, scratchpad);
  if (description_.statistics)
    channel_sums(y_shape_, static_cast<const float*>(args.y), args.statistics, at(workspace, forward_at_.sums),
                 context_);
}

void CpuConv2d::backward(const Backward& args, const OpMemory& memory, Stream&) {
  require(!description_.inference, ErrorCode::internal, "{} was planned for inference, and backward was called",
          text(description_));
  omp_set_num_threads(context_.threads);
  void* const workspace = memory.workspace;
  const float* const z =
      input(args.x, args.normalization, memory, backward_at_.z, normalized_ == NormalizedInput::temporary);
  const float* dy = static_cast<const float*>(args.dy);
  if (dy_to_inner_) {
    float* const inner_dy = at(workspace, backward_at_.inner_dy);
    dy_to_inner_.execute(dy, inner_dy, at(workspace, backward_at_.weight_scratchpad));
    dy = inner_dy;
  }
  if (args.dweight_mode != GradientMode::skip) weight_gradient(args, z, dy, workspace);
  if (plan_.backward_data) input_gradient(args, z, dy, workspace);
}

void CpuConv2d::weight_gradient(const Backward& args, const float* x, const float* inner_dy, void* workspace) {
  const BackwardOffsets& offsets = backward_at_;
  float* const scratchpad = at(workspace, offsets.weight_scratchpad);
  const bool accumulate = args.dweight_mode == GradientMode::accumulate;
  if (plan_.own_weight_gradient)
    return cpu::weight_gradient(description_, x, inner_dy, args.dweight, accumulate, scratchpad, context_);
  if (x_to_inner_) {
    float* const inner_x = at(workspace, offsets.inner_x);
    x_to_inner_.execute(x, inner_x, scratchpad);
    x = inner_x;
  }
  const bool direct = !accumulate && !dweight_out_;
  float* const inner_dweight = direct ? args.dweight : at(workspace, offsets.inner_dweight);
  float* const dweight =
      !accumulate ? args.dweight : at(workspace, dweight_out_ ? offsets.dweight : offsets.inner_dweight);
  // oneDNN does not write all padding of a padded layout, and the gradient of padding must be zero.
  if (plan_.layout->padded()) std::memset(dweight, 0, plan_.layout->desc().get_size());
  backward_weights_.execute({{DNNL_ARG_SRC, x},
                             {DNNL_ARG_DIFF_DST, inner_dy},
                             {DNNL_ARG_DIFF_WEIGHTS, inner_dweight},
                             {DNNL_ARG_SCRATCHPAD, scratchpad}});
  if (dweight_out_) dweight_out_.execute(inner_dweight, dweight, scratchpad);
  if (accumulate) add_into(args.dweight, dweight, plan_.layout->n_elements(), context_);
}

const float* CpuConv2d::data_gradient(const Backward& args, const float* inner_dy, float* target, void* workspace) {
  const BackwardOffsets& offsets = backward_at_;
  float* const scratchpad = at(workspace, offsets.data_scratchpad);
  const float* weights = args.weight;
  if (backward_weights_in_) {
    float* const inner_weights = at(workspace, offsets.weights);
    backward_weights_in_.execute(weights, inner_weights, scratchpad);
    weights = inner_weights;
  }
  if (target == nullptr) target = at(workspace, offsets.dx);
  float* const inner_dx = dx_from_inner_ ? at(workspace, offsets.inner_dx) : target;
  backward_data_.execute({{DNNL_ARG_DIFF_DST, inner_dy},
                          {DNNL_ARG_WEIGHTS, weights},
                          {DNNL_ARG_DIFF_SRC, inner_dx},
                          {DNNL_ARG_SCRATCHPAD, scratchpad}});
  if (dx_from_inner_) dx_from_inner_.execute(inner_dx, target, scratchpad);
  return target;
}

void CpuConv2d::input_gradient(const Backward& args, const float* z, const float* inner_dy, void* workspace) {
  if (description_.normalization) {
    const InputNormalization& normalization = *description_.normalization;
    // dz takes the data gradient first, unless another gradient still lies there.
    float* const target = args.gradient.dz == args.gradient.added ? nullptr : static_cast<float*>(args.gradient.dz);
    const float* const gradient = data_gradient(args, inner_dy, target, workspace);
    // Without a residual the mask follows from x, which is read anyway for the sums.
    const float* const mask = normalization.residual == InputNormalization::Residual::none ? nullptr : z;
    normalize_backward(x_shape_, normalization, static_cast<const float*>(args.x), args.normalization, mask, gradient,
                       args.gradient, at(workspace, backward_at_.normalize), context_);
    return;
  }
  if (args.dx_mode == GradientMode::skip) return;
  auto* const dx = static_cast<float*>(args.dx);
  const bool accumulate = args.dx_mode == GradientMode::accumulate;
  const float* const gradient = data_gradient(args, inner_dy, accumulate ? nullptr : dx, workspace);
  if (accumulate) add_into(dx, gradient, static_cast<std::size_t>(description_.x.n_elements()), context_);
}

}  // namespace

std::unique_ptr<Conv2d> make_conv2d(const Conv2dDescription& description, const CpuContext& context,
                                    const CpuOptions& options) {
  omp_set_num_threads(context.threads);  // oneDNN plans for as many
  return std::make_unique<CpuConv2d>(description, context, options);
}

}  // namespace lockstep::cpu

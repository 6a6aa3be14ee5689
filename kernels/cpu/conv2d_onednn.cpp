// A bare convolution by oneDNN, with reorders between the caller's layouts and those of its kernels ("inner",
// conv2d_plan_onednn.h). Weights have the type of x and y: a reorder changes their layout, or widens them where the
// processor has no instructions for bf16. Their gradient is fp32.
#include <omp.h>

#include <algorithm>
#include <cstring>

#include "kernels/cpu/base/add_into.h"
#include "kernels/cpu/base/workspace.h"
#include "kernels/cpu/conv2d_bare.h"
#include "kernels/cpu/conv2d_plan_onednn.h"
#include "lockstep/ops/conv2d.h"

namespace lockstep::cpu {
namespace {

class OnednnConvolution final : public BareConvolution {
 public:
  OnednnConvolution(const Conv2dDescription& d, Direction direction, const CpuContext& context)
      : direction_(direction),
        context_(context),
        plan_(plan_convolution(d, direction)),
        parameter_(onednn_desc(*plan_.layout, dnnl::memory::data_type::f32)) {
    plan_with_onednn(text(d), [&] {
      switch (direction) {
        case Direction::forward:
          return plan_forward();
        case Direction::data_gradient:
          return plan_data_gradient();
        case Direction::weight_gradient:
          return plan_weight_gradient();
      }
    });
  }

  std::shared_ptr<const BlockedLayout> weight_layout() const override { return plan_.layout; }
  std::size_t workspace_bytes() const override { return bytes_; }
  std::string describe() const override;

  void forward(const void* x, const void* weight, void* y, void* workspace) override;
  void weight_gradient(const void* x, const void* dy, float* dweight, bool accumulate, void* workspace) override;
  void data_gradient(const void* dy, const void* weight, void* dx, void* workspace) override;

 private:
  void plan_forward();
  void plan_weight_gradient();
  void plan_data_gradient();
  /// Returns `source`, or its copy at `offset` in the workspace if a reorder is needed.
  static const void* reordered(PlannedReorder& reorder, const void* source, void* workspace, std::size_t offset,
                               void* scratchpad);

  Direction direction_;
  CpuContext context_;
  ConvolutionPlan plan_;
  dnnl::memory::desc parameter_;  // fp32, in the layout of the weights
  std::size_t bytes_ = 0;
  PlannedPrimitive primitive_;
  // Each is empty if both sides have the same layout.
  PlannedReorder x_to_inner_, y_from_inner_, dy_to_inner_, dx_from_inner_, weights_to_inner_, dweight_from_inner_;

  struct {
    std::size_t x = 0, y = 0, weights = 0, dweight = 0, inner_dweight = 0, scratchpad = 0;
  } at_;
};

void OnednnConvolution::plan_forward() {
  const auto& chosen = plan_.forward;
  primitive_ = PlannedPrimitive(dnnl::convolution_forward(chosen), {{DNNL_ARG_SRC, chosen.src_desc()},
                                                                    {DNNL_ARG_WEIGHTS, chosen.weights_desc()},
                                                                    {DNNL_ARG_DST, chosen.dst_desc()},
                                                                    {DNNL_ARG_SCRATCHPAD, chosen.scratchpad_desc()}});
  x_to_inner_ = PlannedReorder(plan_.x, plan_.inner_x, context_);
  y_from_inner_ = PlannedReorder(plan_.inner_y, plan_.y, context_);
  weights_to_inner_ = PlannedReorder(plan_.weights, chosen.weights_desc(), context_);
  WorkspacePlan workspace;
  if (x_to_inner_) at_.x = workspace.take(plan_.inner_x.get_size());
  if (y_from_inner_) at_.y = workspace.take(plan_.inner_y.get_size());
  if (weights_to_inner_) at_.weights = workspace.take(chosen.weights_desc().get_size());
  at_.scratchpad = workspace.take(std::max({chosen.scratchpad_desc().get_size(), x_to_inner_.scratchpad_bytes(),
                                            y_from_inner_.scratchpad_bytes(), weights_to_inner_.scratchpad_bytes()}));
  bytes_ = workspace.size_bytes();
}

void OnednnConvolution::plan_weight_gradient() {
  const auto& chosen = *plan_.backward_weights;
  primitive_ =
      PlannedPrimitive(dnnl::convolution_backward_weights(chosen), {{DNNL_ARG_SRC, chosen.src_desc()},
                                                                    {DNNL_ARG_DIFF_DST, chosen.diff_dst_desc()},
                                                                    {DNNL_ARG_DIFF_WEIGHTS, chosen.diff_weights_desc()},
                                                                    {DNNL_ARG_SCRATCHPAD, chosen.scratchpad_desc()}});
  dweight_from_inner_ = PlannedReorder(chosen.diff_weights_desc(), parameter_, context_);
  x_to_inner_ = PlannedReorder(plan_.x, plan_.inner_x, context_);
  dy_to_inner_ = PlannedReorder(plan_.y, plan_.inner_y, context_);
  WorkspacePlan workspace;
  if (x_to_inner_) at_.x = workspace.take(plan_.inner_x.get_size());
  if (dy_to_inner_) at_.y = workspace.take(plan_.inner_y.get_size());
  at_.inner_dweight = workspace.take(chosen.diff_weights_desc().get_size());
  if (dweight_from_inner_) at_.dweight = workspace.take(parameter_.get_size());
  at_.scratchpad = workspace.take(std::max({chosen.scratchpad_desc().get_size(), dweight_from_inner_.scratchpad_bytes(),
                                            x_to_inner_.scratchpad_bytes(), dy_to_inner_.scratchpad_bytes()}));
  bytes_ = workspace.size_bytes();
}

void OnednnConvolution::plan_data_gradient() {
  const auto& chosen = *plan_.backward_data;
  primitive_ =
      PlannedPrimitive(dnnl::convolution_backward_data(chosen), {{DNNL_ARG_DIFF_DST, chosen.diff_dst_desc()},
                                                                 {DNNL_ARG_WEIGHTS, chosen.weights_desc()},
                                                                 {DNNL_ARG_DIFF_SRC, chosen.diff_src_desc()},
                                                                 {DNNL_ARG_SCRATCHPAD, chosen.scratchpad_desc()}});
  weights_to_inner_ = PlannedReorder(plan_.weights, chosen.weights_desc(), context_);
  dx_from_inner_ = PlannedReorder(plan_.inner_x, plan_.x, context_);
  dy_to_inner_ = PlannedReorder(plan_.y, plan_.inner_y, context_);
  WorkspacePlan workspace;
  if (weights_to_inner_) at_.weights = workspace.take(chosen.weights_desc().get_size());
  if (dy_to_inner_) at_.y = workspace.take(plan_.inner_y.get_size());
  if (dx_from_inner_) at_.x = workspace.take(plan_.inner_x.get_size());
  at_.scratchpad = workspace.take(std::max({chosen.scratchpad_desc().get_size(), weights_to_inner_.scratchpad_bytes(),
                                            dx_from_inner_.scratchpad_bytes(), dy_to_inner_.scratchpad_bytes()}));
  bytes_ = workspace.size_bytes();
}

std::string OnednnConvolution::describe() const {
  std::string out = direction_ == Direction::forward         ? plan_.forward.impl_info_str()
                    : direction_ == Direction::data_gradient ? plan_.backward_data->impl_info_str()
                                                             : plan_.backward_weights->impl_info_str();
  if (weights_to_inner_ || dweight_from_inner_) out += ", weights reordered";
  if (x_to_inner_ || dx_from_inner_) out += ", x reordered";
  if (y_from_inner_ || dy_to_inner_) out += ", y reordered";
  return out;
}

const void* OnednnConvolution::reordered(PlannedReorder& reorder, const void* source, void* workspace,
                                         std::size_t offset, void* scratchpad) {
  if (!reorder) return source;
  void* const target = at<void>(workspace, offset);
  reorder.execute(source, target, scratchpad);
  return target;
}

void OnednnConvolution::forward(const void* x, const void* weight, void* y, void* workspace) {
  omp_set_num_threads(context_.threads);
  void* const scratchpad = at<void>(workspace, at_.scratchpad);
  void* const inner_y = y_from_inner_ ? at<void>(workspace, at_.y) : y;
  primitive_.execute({{DNNL_ARG_SRC, reordered(x_to_inner_, x, workspace, at_.x, scratchpad)},
                      {DNNL_ARG_WEIGHTS, reordered(weights_to_inner_, weight, workspace, at_.weights, scratchpad)},
                      {DNNL_ARG_DST, inner_y},
                      {DNNL_ARG_SCRATCHPAD, scratchpad}});
  if (y_from_inner_) y_from_inner_.execute(inner_y, y, scratchpad);
}

void OnednnConvolution::weight_gradient(const void* x, const void* dy, float* dweight, bool accumulate,
                                        void* workspace) {
  omp_set_num_threads(context_.threads);
  void* const scratchpad = at<void>(workspace, at_.scratchpad);
  const bool direct = !accumulate && !dweight_from_inner_;
  float* const inner = direct ? dweight : at(workspace, at_.inner_dweight);
  float* const outer = !accumulate ? dweight : at(workspace, dweight_from_inner_ ? at_.dweight : at_.inner_dweight);
  // oneDNN does not write all padding of a padded layout, and the gradient of padding must be zero.
  if (plan_.layout->padded()) std::memset(outer, 0, parameter_.get_size());
  primitive_.execute({{DNNL_ARG_SRC, reordered(x_to_inner_, x, workspace, at_.x, scratchpad)},
                      {DNNL_ARG_DIFF_DST, reordered(dy_to_inner_, dy, workspace, at_.y, scratchpad)},
                      {DNNL_ARG_DIFF_WEIGHTS, inner},
                      {DNNL_ARG_SCRATCHPAD, scratchpad}});
  if (dweight_from_inner_) dweight_from_inner_.execute(inner, outer, scratchpad);
  if (accumulate) add_into(DType::fp32, dweight, outer, plan_.layout->n_elements(), context_);
}

void OnednnConvolution::data_gradient(const void* dy, const void* weight, void* dx, void* workspace) {
  omp_set_num_threads(context_.threads);
  void* const scratchpad = at<void>(workspace, at_.scratchpad);
  void* const inner_dx = dx_from_inner_ ? at<void>(workspace, at_.x) : dx;
  primitive_.execute({{DNNL_ARG_DIFF_DST, reordered(dy_to_inner_, dy, workspace, at_.y, scratchpad)},
                      {DNNL_ARG_WEIGHTS, reordered(weights_to_inner_, weight, workspace, at_.weights, scratchpad)},
                      {DNNL_ARG_DIFF_SRC, inner_dx},
                      {DNNL_ARG_SCRATCHPAD, scratchpad}});
  if (dx_from_inner_) dx_from_inner_.execute(inner_dx, dx, scratchpad);
}

}  // namespace

std::unique_ptr<BareConvolution> make_onednn_convolution(const Conv2dDescription& d, Direction direction,
                                                         const CpuContext& context) {
  omp_set_num_threads(context.threads);  // oneDNN plans for this number of threads
  return std::make_unique<OnednnConvolution>(d, direction, context);
}

}  // namespace lockstep::cpu

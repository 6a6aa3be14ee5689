// A bare convolution by oneDNN, with reorders between the caller's layouts and those of its kernels ("inner"). Weights
// have the type of x and y: a reorder changes their layout, or widens them where the processor has no instructions for
// bf16. Their gradient is fp32.
//
// Measured, ResNet-18 at 32x32, batch 32, 1 thread, Zen 4 (oneDNN 3.2, forward and both gradients, all convolutions but
// the first): nchw16c 891 ms, nhwc 922 ms. A reorder of weights is fast (53 GB/s, 2 ms for all of ResNet-18).
#include <omp.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>

#include "kernels/cpu/base/onednn.h"
#include "kernels/cpu/base/widen.h"
#include "kernels/cpu/conv2d_bare.h"
#include "lockstep/ops/conv2d.h"
#include "lockstep/workspace.h"

namespace lockstep::cpu {
namespace {

using dnnl::memory;
using Tag = memory::format_tag;

memory::desc image(const Shape& s, memory::data_type type, Tag tag) { return {{s[0], s[3], s[1], s[2]}, type, tag}; }

Tag tag_of(Layout layout) { return layout == Layout::nhwc ? Tag::nhwc : Tag::nChw16c; }

struct InnerTags {
  Tag x, y;
};
/// oneDNN's kernels need x and y in matching layouts: the caller's if they match, otherwise y's. Images with up to 3
/// channels are the exception: their planes are converted directly to blocks. There is no fast data gradient for this,
/// but a first layer never needs one.
InnerTags inner_tags(const Conv2dDescription& d) {
  const Tag y = tag_of(d.y_layout);
  if (d.x_layout == d.y_layout || d.y_layout == Layout::nhwc) return {y, y};
  if (d.x[3] > 3) return {Tag::nChw16c, y};  // a partial last block is padded with zeros
  if (d.input_gradient && !d.inference) return {Tag::nhwc, Tag::nhwc};
  return {Tag::nchw, y};
}

/// What oneDNN does for one convolution: the layouts it works in, and an implementation for each direction.
struct ConvolutionPlan {
  // The caller's tensors, and the same as the primitives read and write them. They differ where oneDNN has no fast
  // implementation for the caller's pair: nhwc in and nchw16c out, or the reverse; and in bf16 on a processor without
  // its instructions, where the primitives compute in fp32.
  dnnl::memory::desc x, y, inner_x, inner_y;
  std::shared_ptr<const BlockedLayout> layout;  // of the weights
  dnnl::memory::desc weights;                   // the caller's, of x's type in `layout`

  dnnl::convolution_forward::primitive_desc forward;
  std::optional<dnnl::convolution_backward_data::primitive_desc> backward_data;
  std::optional<dnnl::convolution_backward_weights::primitive_desc> backward_weights;
};

/// For backward: the plan of one direction. Throws Error if oneDNN has no implementation.
ConvolutionPlan plan_convolution(const Conv2dDescription& d, Direction direction) {
  ConvolutionPlan plan;
  using Type = memory::data_type;
  const Type outer = onednn_type(d.dtype);
  const Type inner = onednn_has(dnnl::cpu_isa::avx512_core_bf16) ? outer : Type::f32;
  plan.x = image(d.x, outer, tag_of(d.x_layout));
  plan.y = image(d.y(), outer, tag_of(d.y_layout));
  plan.inner_x = image(d.x, inner, inner_tags(d).x);
  plan.inner_y = image(d.y(), inner, inner_tags(d).y);

  const memory::dims weight_dims{d.out_channels, d.x[3], d.kernel_size, d.kernel_size};
  const memory::desc any(weight_dims, inner, Tag::any), any_fp32(weight_dims, Type::f32, Tag::any);
  const memory::dims strides{d.stride, d.stride}, padding{d.padding, d.padding};
  const auto algorithm = dnnl::algorithm::convolution_direct;
  const dnnl::primitive_attr attributes = user_scratchpad();

  plan_with_onednn(text(d), [&] {
    const auto kind = d.inference ? dnnl::prop_kind::forward_inference : dnnl::prop_kind::forward_training;
    const auto forward = [&](const memory::desc& weights, bool allow_empty) {
      return dnnl::convolution_forward::primitive_desc(onednn_engine(), kind, algorithm, plan.inner_x, weights,
                                                       plan.inner_y, strides, padding, padding, attributes,
                                                       allow_empty);
    };
    plan.layout = as_blocked_layout(d.weight_layout, weight_dims);
    plan.forward = plan.layout ? choose_weights(onednn_desc(*plan.layout, inner), any, forward) : forward(any, false);
    if (!plan.layout) {
      // In bf16 the kernels of forward and data gradient use different layouts (pairs of input or of output channels),
      // so at least one of them reorders the weights.
      plan.layout = std::make_shared<BlockedLayout>(inner == Type::f32 ? layout_of(plan.forward.weights_desc())
                                                                       : BlockedLayout::row_major(weight_dims));
    }
    plan.weights = onednn_desc(*plan.layout, outer);

    if (direction == Direction::data_gradient) {
      plan.backward_data =
          choose_weights(onednn_desc(*plan.layout, inner), any, [&](const memory::desc& weights, bool allow_empty) {
            return dnnl::convolution_backward_data::primitive_desc(onednn_engine(), algorithm, plan.inner_x, weights,
                                                                   plan.inner_y, strides, padding, padding,
                                                                   plan.forward, attributes, allow_empty);
          });
    }
    if (direction != Direction::weight_gradient) return;
    plan.backward_weights = choose_weights(
        onednn_desc(*plan.layout, Type::f32), any_fp32, [&](const memory::desc& weights, bool allow_empty) {
          return dnnl::convolution_backward_weights::primitive_desc(onednn_engine(), algorithm, plan.inner_x, weights,
                                                                    plan.inner_y, strides, padding, padding,
                                                                    plan.forward, attributes, allow_empty);
        });
  });
  return plan;
}

class OnednnConvolution final : public BareConvolution {
 public:
  OnednnConvolution(const Conv2dDescription& d, Direction direction, const CpuContext& context)
      : direction_(direction),
        context_(context),
        plan_(plan_convolution(d, direction)),
        parameter_(onednn_desc(*plan_.layout, memory::data_type::f32)) {
    plan_with_onednn(text(d), [&] {
      switch (direction) {
        case Direction::forward:
          return plan(dnnl::convolution_forward(plan_.forward), plan_.forward, plan_.forward.weights_desc(),
                      {DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DST});
        case Direction::data_gradient:
          return plan(dnnl::convolution_backward_data(*plan_.backward_data), *plan_.backward_data,
                      plan_.backward_data->weights_desc(), {DNNL_ARG_DIFF_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DIFF_DST});
        case Direction::weight_gradient:
          return plan(dnnl::convolution_backward_weights(*plan_.backward_weights), *plan_.backward_weights,
                      plan_.backward_weights->diff_weights_desc(),
                      {DNNL_ARG_SRC, DNNL_ARG_DIFF_WEIGHTS, DNNL_ARG_DIFF_DST});
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
  /// The numbers of a primitive's arguments: x, the weights and y, or their gradients.
  struct Numbers {
    int x, weights, y;
  };
  template <typename Chosen>
  void plan(const dnnl::primitive& primitive, const Chosen& chosen, const memory::desc& weights,
            const Numbers& numbers);
  void execute(const void* x, const void* weights, const void* y, void* scratchpad);
  /// Returns `source`, or its copy at `offset` in the workspace if a reorder is needed.
  const void* reordered(PlannedReorder& reorder, const void* source, void* workspace, std::size_t offset) const;

  Direction direction_;
  CpuContext context_;
  ConvolutionPlan plan_;
  memory::desc parameter_;  // fp32, in the layout of the weights
  std::size_t bytes_ = 0;
  PlannedPrimitive primitive_;
  Numbers numbers_{};
  // Of an input, to the inner layout, and of the result, from it; empty if both sides have the same layout.
  PlannedReorder x_, y_, weights_;

  struct {
    std::size_t x = 0, y = 0, weights = 0, inner_dweight = 0, scratchpad = 0;
  } at_;
};

template <typename Chosen>
void OnednnConvolution::plan(const dnnl::primitive& primitive, const Chosen& chosen, const memory::desc& weights,
                             const Numbers& numbers) {
  numbers_ = numbers;
  primitive_ = PlannedPrimitive(primitive, {{numbers.x, plan_.inner_x},
                                            {numbers.weights, weights},
                                            {numbers.y, plan_.inner_y},
                                            {DNNL_ARG_SCRATCHPAD, chosen.scratchpad_desc()}});
  const auto reorder = [&](const memory::desc& outer, const memory::desc& inner, bool is_result) {
    return is_result ? PlannedReorder(inner, outer, context_) : PlannedReorder(outer, inner, context_);
  };
  const bool gives_dweight = direction_ == Direction::weight_gradient;
  x_ = reorder(plan_.x, plan_.inner_x, direction_ == Direction::data_gradient);
  y_ = reorder(plan_.y, plan_.inner_y, direction_ == Direction::forward);
  weights_ = reorder(gives_dweight ? parameter_ : plan_.weights, weights, gives_dweight);
  WorkspacePlan workspace;
  if (x_) at_.x = workspace.take(plan_.inner_x.get_size());
  if (y_) at_.y = workspace.take(plan_.inner_y.get_size());
  if (gives_dweight) at_.inner_dweight = workspace.take(weights.get_size());
  if (weights_) at_.weights = workspace.take(gives_dweight ? parameter_.get_size() : weights.get_size());
  at_.scratchpad = workspace.take(std::max({chosen.scratchpad_desc().get_size(), x_.scratchpad_bytes(),
                                            y_.scratchpad_bytes(), weights_.scratchpad_bytes()}));
  bytes_ = workspace.size_bytes();
}

std::string OnednnConvolution::describe() const {
  std::string out = direction_ == Direction::forward         ? plan_.forward.impl_info_str()
                    : direction_ == Direction::data_gradient ? plan_.backward_data->impl_info_str()
                                                             : plan_.backward_weights->impl_info_str();
  if (weights_) out += ", weights reordered";
  if (x_) out += ", x reordered";
  if (y_) out += ", y reordered";
  return out;
}

const void* OnednnConvolution::reordered(PlannedReorder& reorder, const void* source, void* workspace,
                                         std::size_t offset) const {
  if (!reorder) return source;
  void* const target = at(workspace, offset);
  reorder.execute(source, target, at(workspace, at_.scratchpad));
  return target;
}

void OnednnConvolution::execute(const void* x, const void* weights, const void* y, void* scratchpad) {
  primitive_.execute(
      {{numbers_.x, x}, {numbers_.weights, weights}, {numbers_.y, y}, {DNNL_ARG_SCRATCHPAD, scratchpad}});
}

void OnednnConvolution::forward(const void* x, const void* weight, void* y, void* workspace) {
  omp_set_num_threads(context_.threads);
  void* const scratchpad = at(workspace, at_.scratchpad);
  void* const inner_y = y_ ? at(workspace, at_.y) : y;
  const void* const inner_x = reordered(x_, x, workspace, at_.x);
  execute(inner_x, reordered(weights_, weight, workspace, at_.weights), inner_y, scratchpad);
  if (y_) y_.execute(inner_y, y, scratchpad);
}

void OnednnConvolution::data_gradient(const void* dy, const void* weight, void* dx, void* workspace) {
  omp_set_num_threads(context_.threads);
  void* const scratchpad = at(workspace, at_.scratchpad);
  void* const inner_dx = x_ ? at(workspace, at_.x) : dx;
  const void* const inner_dy = reordered(y_, dy, workspace, at_.y);
  execute(inner_dx, reordered(weights_, weight, workspace, at_.weights), inner_dy, scratchpad);
  if (x_) x_.execute(inner_dx, dx, scratchpad);
}

void OnednnConvolution::weight_gradient(const void* x, const void* dy, float* dweight, bool accumulate,
                                        void* workspace) {
  omp_set_num_threads(context_.threads);
  void* const scratchpad = at(workspace, at_.scratchpad);
  const bool direct = !accumulate && !weights_;
  float* const inner = direct ? dweight : at<float>(workspace, at_.inner_dweight);
  float* const outer = !accumulate ? dweight : at<float>(workspace, weights_ ? at_.weights : at_.inner_dweight);
  // oneDNN does not write all padding of a padded layout, and the gradient of padding must be zero.
  if (plan_.layout->padded()) std::memset(outer, 0, parameter_.get_size());
  const void* const inner_x = reordered(x_, x, workspace, at_.x);
  execute(inner_x, inner, reordered(y_, dy, workspace, at_.y), scratchpad);
  if (weights_) weights_.execute(inner, outer, scratchpad);
  if (accumulate) add_into(DType::fp32, dweight, outer, plan_.layout->n_elements(), context_);
}

}  // namespace

std::unique_ptr<BareConvolution> make_onednn_convolution(const Conv2dDescription& d, Direction direction,
                                                         const CpuContext& context) {
  omp_set_num_threads(context.threads);  // oneDNN plans for this number of threads
  return std::make_unique<OnednnConvolution>(d, direction, context);
}

}  // namespace lockstep::cpu

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

class OnednnConvolution final : public BareConvolution {
 public:
  OnednnConvolution(const Conv2dDescription& d, Direction direction, const CpuContext& context)
      : direction_(direction), context_(context) {
    plan_with_onednn(text(d), [&] { plan(d); });
  }

  std::shared_ptr<const BlockedLayout> weight_layout() const override { return layout_; }
  std::size_t workspace_bytes() const override { return bytes_; }
  std::string describe() const override;

  void run(const void* from, const void* weight, void* to, void* workspace) override;
  void weight_gradient(const void* x, const void* dy, float* dweight, bool accumulate, void* workspace) override;

 private:
  /// x, y, or the weights: as the caller has them, and as the primitive reads or writes them ("inner"). They differ
  /// where oneDNN has no fast implementation for the caller's layouts, and in bf16 on a processor without its
  /// instructions, where the primitives compute in fp32.
  struct Tensor {
    memory::desc outer, inner;
  };
  /// A copy between both forms; empty if they are the same.
  struct Copy {
    PlannedReorder reorder;
    std::size_t at = 0;
  };
  /// The numbers of a primitive's arguments: x, the weights and y, or their gradients.
  struct Numbers {
    int x, weights, y;
  };

  /// Throws dnnl::error if oneDNN has no implementation.
  void plan(const Conv2dDescription& d);
  void place(const dnnl::primitive_desc& chosen, const Tensor& x, const Tensor& weights, const Tensor& y,
             const Numbers& numbers);
  void execute(const void* x, const void* weights, const void* y, void* scratchpad);
  /// Returns `source`, or its copy in the workspace if a reorder is needed.
  const void* reordered(Copy& copy, const void* source, void* workspace) const;

  Direction direction_;
  CpuContext context_;
  std::shared_ptr<const BlockedLayout> layout_;  // of the weights
  std::string implementation_;
  std::size_t bytes_ = 0;
  PlannedPrimitive primitive_;
  Numbers numbers_{};
  Copy x_, y_, weights_;
  std::size_t inner_dweight_at_ = 0, scratchpad_at_ = 0;
};

void OnednnConvolution::plan(const Conv2dDescription& d) {
  using Type = memory::data_type;
  const Type outer = onednn_type(d.dtype);
  const Type inner = onednn_has(dnnl::cpu_isa::avx512_core_bf16) ? outer : Type::f32;
  const Tensor x{image(d.x, outer, tag_of(d.x_layout)), image(d.x, inner, inner_tags(d).x)};
  const Tensor y{image(d.y(), outer, tag_of(d.y_layout)), image(d.y(), inner, inner_tags(d).y)};

  const memory::dims weight_dims{d.out_channels, d.x[3], d.kernel_size, d.kernel_size};
  const memory::desc any(weight_dims, inner, Tag::any), any_fp32(weight_dims, Type::f32, Tag::any);
  const memory::dims strides{d.stride, d.stride}, padding{d.padding, d.padding};
  const auto algorithm = dnnl::algorithm::convolution_direct;
  const dnnl::primitive_attr attributes = user_scratchpad();

  const auto kind = d.inference ? dnnl::prop_kind::forward_inference : dnnl::prop_kind::forward_training;
  const auto make_forward = [&](const memory::desc& weights, bool allow_empty) {
    return dnnl::convolution_forward::primitive_desc(onednn_engine(), kind, algorithm, x.inner, weights, y.inner,
                                                     strides, padding, padding, attributes, allow_empty);
  };
  layout_ = as_blocked_layout(d.weight_layout, weight_dims);
  const auto forward =
      layout_ ? choose_weights(onednn_desc(*layout_, inner), any, make_forward) : make_forward(any, false);
  if (!layout_) {
    // In bf16 the kernels of forward and data gradient use different layouts (pairs of input or of output channels),
    // so at least one of them reorders the weights.
    layout_ = std::make_shared<BlockedLayout>(inner == Type::f32 ? layout_of(forward.weights_desc())
                                                                 : BlockedLayout::row_major(weight_dims));
  }
  const memory::desc weights = onednn_desc(*layout_, outer);
  if (direction_ == Direction::forward)
    return place(forward, x, {weights, forward.weights_desc()}, y, {DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DST});
  if (direction_ == Direction::data_gradient) {
    const auto gradient =
        choose_weights(onednn_desc(*layout_, inner), any, [&](const memory::desc& of_weights, bool allow_empty) {
          return dnnl::convolution_backward_data::primitive_desc(onednn_engine(), algorithm, x.inner, of_weights,
                                                                 y.inner, strides, padding, padding, forward,
                                                                 attributes, allow_empty);
        });
    return place(gradient, x, {weights, gradient.weights_desc()}, y,
                 {DNNL_ARG_DIFF_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DIFF_DST});
  }
  const memory::desc dweight = onednn_desc(*layout_, Type::f32);
  const auto gradient = choose_weights(dweight, any_fp32, [&](const memory::desc& of_weights, bool allow_empty) {
    return dnnl::convolution_backward_weights::primitive_desc(onednn_engine(), algorithm, x.inner, of_weights, y.inner,
                                                              strides, padding, padding, forward, attributes,
                                                              allow_empty);
  });
  place(gradient, x, {dweight, gradient.diff_weights_desc()}, y,
        {DNNL_ARG_SRC, DNNL_ARG_DIFF_WEIGHTS, DNNL_ARG_DIFF_DST});
}

void OnednnConvolution::place(const dnnl::primitive_desc& chosen, const Tensor& x, const Tensor& weights,
                              const Tensor& y, const Numbers& numbers) {
  numbers_ = numbers;
  implementation_ = chosen.impl_info_str();
  primitive_ = PlannedPrimitive(dnnl::primitive(chosen), {{numbers.x, x.inner},
                                                          {numbers.weights, weights.inner},
                                                          {numbers.y, y.inner},
                                                          {DNNL_ARG_SCRATCHPAD, chosen.scratchpad_desc()}});
  const bool gives_dweight = direction_ == Direction::weight_gradient;
  std::size_t scratchpad_bytes = chosen.scratchpad_desc().get_size();
  WorkspacePlan workspace;
  const auto plan_copy = [&](Copy& copy, const Tensor& tensor, bool is_result, std::size_t size_bytes) {
    copy.reorder = is_result ? PlannedReorder(tensor.inner, tensor.outer, context_)
                             : PlannedReorder(tensor.outer, tensor.inner, context_);
    if (!copy.reorder) return;
    copy.at = workspace.take(size_bytes);
    scratchpad_bytes = std::max(scratchpad_bytes, copy.reorder.scratchpad_bytes());
  };
  plan_copy(x_, x, direction_ == Direction::data_gradient, x.inner.get_size());
  plan_copy(y_, y, direction_ == Direction::forward, y.inner.get_size());
  if (gives_dweight) inner_dweight_at_ = workspace.take(weights.inner.get_size());
  plan_copy(weights_, weights, gives_dweight, (gives_dweight ? weights.outer : weights.inner).get_size());
  scratchpad_at_ = workspace.take(scratchpad_bytes);
  bytes_ = workspace.size_bytes();
}

std::string OnednnConvolution::describe() const {
  std::string out = implementation_;
  if (weights_.reorder) out += ", weights reordered";
  if (x_.reorder) out += ", x reordered";
  if (y_.reorder) out += ", y reordered";
  return out;
}

const void* OnednnConvolution::reordered(Copy& copy, const void* source, void* workspace) const {
  if (!copy.reorder) return source;
  void* const target = at(workspace, copy.at);
  copy.reorder.execute(source, target, at(workspace, scratchpad_at_));
  return target;
}

void OnednnConvolution::execute(const void* x, const void* weights, const void* y, void* scratchpad) {
  primitive_.execute(
      {{numbers_.x, x}, {numbers_.weights, weights}, {numbers_.y, y}, {DNNL_ARG_SCRATCHPAD, scratchpad}});
}

void OnednnConvolution::run(const void* from, const void* weight, void* to, void* workspace) {
  omp_set_num_threads(context_.threads);
  const bool is_forward = direction_ == Direction::forward;
  Copy &in = is_forward ? x_ : y_, &out = is_forward ? y_ : x_;
  void* const scratchpad = at(workspace, scratchpad_at_);
  void* const inner_to = out.reorder ? at(workspace, out.at) : to;
  const void* const inner_from = reordered(in, from, workspace);
  execute(is_forward ? inner_from : inner_to, reordered(weights_, weight, workspace),
          is_forward ? inner_to : inner_from, scratchpad);
  if (out.reorder) out.reorder.execute(inner_to, to, scratchpad);
}

void OnednnConvolution::weight_gradient(const void* x, const void* dy, float* dweight, bool accumulate,
                                        void* workspace) {
  omp_set_num_threads(context_.threads);
  void* const scratchpad = at(workspace, scratchpad_at_);
  const bool direct = !accumulate && !weights_.reorder;
  float* const inner = direct ? dweight : at<float>(workspace, inner_dweight_at_);
  float* const outer = !accumulate ? dweight : at<float>(workspace, weights_.reorder ? weights_.at : inner_dweight_at_);
  // oneDNN does not write all padding of a padded layout, and the gradient of padding must be zero.
  if (layout_->padded()) std::memset(outer, 0, layout_->n_elements() * sizeof(float));
  const void* const inner_x = reordered(x_, x, workspace);
  execute(inner_x, inner, reordered(y_, dy, workspace), scratchpad);
  if (weights_.reorder) weights_.reorder.execute(inner, outer, scratchpad);
  if (accumulate) add_into(DType::fp32, dweight, outer, layout_->n_elements(), context_);
}

}  // namespace

std::unique_ptr<BareConvolution> make_onednn_convolution(const Conv2dDescription& d, Direction direction,
                                                         const CpuContext& context) {
  omp_set_num_threads(context.threads);  // oneDNN plans for this number of threads
  return std::make_unique<OnednnConvolution>(d, direction, context);
}

}  // namespace lockstep::cpu

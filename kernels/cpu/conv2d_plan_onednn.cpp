#include "kernels/cpu/conv2d_plan_onednn.h"

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

}  // namespace

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

}  // namespace lockstep::cpu

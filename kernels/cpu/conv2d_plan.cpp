#include "kernels/cpu/conv2d_plan.h"

#include <string_view>

namespace lockstep::cpu {
namespace {

using dnnl::memory;
using Tag = memory::format_tag;

constexpr std::int64_t kBlock = 16;  // channels of a block of Layout::nchw16c

memory::desc image(const Shape& s, memory::data_type type, Tag tag) { return {{s[0], s[3], s[1], s[2]}, type, tag}; }

Tag tag_of(Layout layout) { return layout == Layout::nhwc ? Tag::nhwc : Tag::nChw16c; }

struct InnerTags {
  Tag x, y;
};
/// oneDNN's kernels need x and y in matching layouts: the caller's if they match, otherwise y's. Images of up to 3
/// channels are the exception: their planes are converted directly to blocks. This has no fast data gradient, but a
/// first layer never needs it.
InnerTags inner_tags(const Conv2dDescription& d) {
  const Tag y = tag_of(d.y_layout);
  if (d.x_layout == d.y_layout || d.y_layout == Layout::nhwc) return {y, y};
  if (d.x[3] > 3) return {Tag::nChw16c, y};  // a last block that is not full is padded with zeros
  if (d.input_gradient && !d.inference) return {Tag::nhwc, Tag::nhwc};
  return {Tag::nchw, y};
}

}  // namespace

std::string text(const Conv2dDescription& d) {
  return fmt::format("conv2d {} -> {}, {}x{}/{}", d.x.text(), d.out_channels, d.window, d.window, d.stride);
}

void check(const Conv2dDescription& d) {
  require(d.dtype == DType::fp32 || d.dtype == DType::bf16, ErrorCode::not_supported,
          "{}: the cpu backend computes in fp32 or bf16, not in {}", text(d), name(d.dtype));
  require(d.x.rank() == 4 && d.x.n_elements() > 0 && d.out_channels > 0, ErrorCode::op_description,
          "{}: x must be (N, H, W, C) and out_channels positive", text(d));
  require(d.window > 0 && d.stride > 0 && d.padding >= 0, ErrorCode::op_description,
          "{}: window and stride must be positive, padding {} not negative", text(d), d.padding);
  const std::int64_t smallest = d.window - 2 * d.padding;
  require(d.x[1] >= smallest && d.x[2] >= smallest, ErrorCode::op_description,
          "{}: a window of {} with padding {} needs images of at least {} pixels, found {} x {}", text(d), d.window,
          d.padding, smallest, d.x[1], d.x[2]);
  require(d.x_layout == Layout::nhwc || d.x[3] % kBlock == 0, ErrorCode::op_description,
          "{}: x in channel blocks of {} needs a multiple of {} channels, found {}", text(d), kBlock, kBlock, d.x[3]);
  require(d.y_layout == Layout::nhwc || d.out_channels % kBlock == 0, ErrorCode::op_description,
          "{}: y in channel blocks of {} needs a multiple of {} channels, found {}", text(d), kBlock, kBlock,
          d.out_channels);
}

ConvolutionPlan plan_convolution(const Conv2dDescription& d, Direction direction) {
  ConvolutionPlan plan;
  using Type = memory::data_type;
  const Type outer = onednn_type(d.dtype);
  const Type inner = onednn_has(dnnl::cpu_isa::avx512_core_bf16) ? outer : Type::f32;
  plan.x = image(d.x, outer, tag_of(d.x_layout));
  plan.y = image(d.y(), outer, tag_of(d.y_layout));
  plan.inner_x = image(d.x, inner, inner_tags(d).x);
  plan.inner_y = image(d.y(), inner, inner_tags(d).y);

  const memory::dims weight_dims{d.out_channels, d.x[3], d.window, d.window};
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
    plan.layout = as_onednn_layout(d.weight_layout, weight_dims);
    plan.forward = plan.layout ? choose_weights(plan.layout->desc(inner), any, forward) : forward(any, false);
    if (!plan.layout) {
      // In bf16 the kernels of forward and data gradient use different layouts (pairs of input or of output channels),
      // so at least one of them reorders the weights.
      const memory::desc canonical(weight_dims, Type::f32, Tag::oihw);
      plan.layout =
          std::make_shared<OnednnLayout>(canonical, inner == Type::f32 ? plan.forward.weights_desc() : canonical);
    }
    plan.weights = plan.layout->desc(outer);

    if (direction == Direction::data_gradient) {
      plan.backward_data =
          choose_weights(plan.layout->desc(inner), any, [&](const memory::desc& weights, bool allow_empty) {
            return dnnl::convolution_backward_data::primitive_desc(onednn_engine(), algorithm, plan.inner_x, weights,
                                                                   plan.inner_y, strides, padding, padding,
                                                                   plan.forward, attributes, allow_empty);
          });
    }
    if (direction != Direction::weight_gradient) return;
    plan.backward_weights =
        choose_weights(plan.layout->desc(), any_fp32, [&](const memory::desc& weights, bool allow_empty) {
          return dnnl::convolution_backward_weights::primitive_desc(onednn_engine(), algorithm, plan.inner_x, weights,
                                                                    plan.inner_y, strides, padding, padding,
                                                                    plan.forward, attributes, allow_empty);
        });
  });
  return plan;
}

}  // namespace lockstep::cpu

#include "kernels/cuda/conv2d_bare.h"

#include <cmath>

#include "lockstep/error.h"

namespace lockstep::cuda {

const char* name(ConvolutionGraph graph) {
  switch (graph) {
    case ConvolutionGraph::forward:
      return "forward";
    case ConvolutionGraph::forward_statistics:
      return "forward, statistics";
    case ConvolutionGraph::normalized_forward:
      return "norm, forward, statistics";
    case ConvolutionGraph::residual_forward:
      return "norm + residual, forward, statistics";
    case ConvolutionGraph::normalized_residual_forward:
      return "norm + norm, forward, statistics";
    case ConvolutionGraph::data_gradient:
      return "data gradient";
    case ConvolutionGraph::normalized_data_gradient:
      return "data gradient, norm";
    case ConvolutionGraph::normalized_data_gradient_added:
      return "data gradient + added, norm";
    case ConvolutionGraph::residual_data_gradient_added:
      return "data gradient + added, norm + residual";
    case ConvolutionGraph::normalized_residual_data_gradient_added:
      return "data gradient + added, norm + norm";
    case ConvolutionGraph::weight_gradient:
      return "weight gradient";
    case ConvolutionGraph::normalized_weight_gradient:
      return "norm, weight gradient";
  }
  return "";
}

std::string text(const ConvolutionShape& shape) {
  return fmt::format("{} -> {}, {}x{}/{}+{}, {}", shape.x.text(), shape.out_channels, shape.kernel_size,
                     shape.kernel_size, shape.stride, shape.padding, shape.tf32 ? "tf32" : name(shape.dtype));
}

std::string choice_text(const ConvolutionShape& shape) {
  ConvolutionShape alike = shape;
  const auto batch = static_cast<std::int64_t>(std::exp2(std::round(std::log2(static_cast<double>(shape.x[0])))));
  alike.x = {batch, shape.x[1], shape.x[2], shape.x[3]};
  return text(alike);
}

bool ends_in_reductions(ConvolutionGraph graph, const ConvolutionShape& shape) {
  return graph == ConvolutionGraph::forward_statistics && shape.dtype != DType::fp16;
}

bool aligns_reductions(const ConvolutionShape& shape) { return shape.out_channels % 4 == 0; }

}  // namespace lockstep::cuda

#include "kernels/cuda/conv2d_bare.h"

#include <cmath>

#include "lockstep/error.h"
#include "lockstep/launches.h"

namespace lockstep::cuda {
namespace {

constexpr std::size_t kWorkspaceBytes = std::size_t{64} << 20;
constexpr int kLeastForFusion = 80;  // the first compute capability for which cuDNN compiles fused kernels

class OfflineConvolution final : public PlannedConvolution {
 public:
  explicit OfflineConvolution(const ConvolutionShape& s)
      : work_{.kind = "convolution",
              .bytes = static_cast<double>(s.x.n_elements() + s.y().n_elements() + weights(s)) *
                       static_cast<double>(size_bytes(s.dtype)),
              .flops = 2 * static_cast<double>(s.y().n_elements()) * static_cast<double>(weights(s)) /
                       static_cast<double>(s.out_channels)} {}
  std::size_t workspace_bytes() const override { return kWorkspaceBytes; }
  std::string plan() const override { return "a plan that the device chooses"; }
  std::size_t n_plans() const override { return 1; }
  void run(const ConvolutionTensors&, void*, Stream&) override { LaunchList::current()->add(work_); }

 private:
  static std::int64_t weights(const ConvolutionShape& s) {
    return s.out_channels * s.x[3] * s.kernel_size * s.kernel_size;
  }
  Launch work_;  // of the input, the output and the weight: what is fused is not counted
};

}  // namespace

const char* name(ConvolutionGraph graph) {
  constexpr const char* kNames[kConvolutionGraphs] = {
      "forward",
      "forward, statistics",
      "norm, forward, statistics",
      "norm + residual, forward, statistics",
      "norm + norm, forward, statistics",
      "data gradient",
      "data gradient, norm",
      "data gradient + added, norm",
      "data gradient + added, norm + residual",
      "data gradient + added, norm + norm",
      "weight gradient",
      "norm, weight gradient",
  };
  return kNames[static_cast<std::size_t>(graph)];
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

bool has_plan_offline(ConvolutionGraph graph, const ConvolutionShape& shape, int compute_capability) {
  using Graph = ConvolutionGraph;
  if (graph == Graph::forward || graph == Graph::data_gradient || graph == Graph::weight_gradient) return true;
  if (compute_capability < kLeastForFusion) return false;
  const bool has_channels = shape.x[3] % 8 == 0 && shape.out_channels % 8 == 0;
  if (ends_in_reductions(graph, shape))
    return (shape.tf32 && aligns_reductions(shape)) || (shape.dtype == DType::bf16 && has_channels);
  if (shape.dtype != DType::fp16) return false;
  switch (graph) {
    case Graph::residual_forward:
    case Graph::normalized_residual_forward:
      return has_channels && shape.kernel_size == 1 && shape.stride == 1;
    case Graph::normalized_data_gradient_added:
    case Graph::residual_data_gradient_added:
    case Graph::normalized_residual_data_gradient_added:
      return has_channels && shape.stride == 1;
    case Graph::forward_statistics:
    case Graph::normalized_forward:
      return has_channels && shape.kernel_size < 7;
    default:
      return has_channels;
  }
}

std::unique_ptr<PlannedConvolution> plan_offline(ConvolutionGraph graph, const ConvolutionShape& shape,
                                                 const CudaContext& context) {
  if (!has_plan_offline(graph, shape, context.compute_capability)) return nullptr;
  return std::make_unique<OfflineConvolution>(shape);
}

}  // namespace lockstep::cuda

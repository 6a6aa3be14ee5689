// A convolution's graphs: a bare one in three directions, and those that cuDNN fuses with the neighbouring ops. The
// unit that consists of them (conv2d.cpp) adds passes for the rest.
//
// Letters: x (N, H, W, C), weight (K, R, S, C), y (N, H', W', K), all of one type; scale, bias of that type too, since
// the fused kernels read nothing else; statistics and what normalises x are fp32. Formulas of z, dz and its sums:
// lockstep/ops/normalization.h.
// A graph overwrites all of its outputs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "kernels/cuda/base/context.h"
#include "lockstep/algorithms.h"
#include "lockstep/dtype.h"
#include "lockstep/event.h"
#include "lockstep/shape.h"

namespace lockstep::cuda {

enum class ConvolutionGraph : std::uint8_t {
  forward,                                  // x -> y
  forward_statistics,                       // x -> y, statistics
  normalized_forward,                       // x -> y, statistics of z = relu(scale x + bias), which stays inside
  residual_forward,                         // x, residual -> z, y, statistics: z = relu(scale x + bias + r)
  normalized_residual_forward,              // the same, z = relu((scale x + bias) + (scale2 r + bias2))
  data_gradient,                            // dy -> dx
  normalized_data_gradient,                 // dy, x -> dz, sums: dz = relu'(scale x + bias) * data gradient
  normalized_data_gradient_added,           // the same of data gradient + added
  residual_data_gradient_added,             // and with the residual in z
  normalized_residual_data_gradient_added,  // and with a normalised residual: residual_sums too
  weight_gradient,                          // x, dy -> dweight
  normalized_weight_gradient,               // dweight of z = relu(scale x + bias), which stays inside
};
inline constexpr int kConvolutionGraphs = 12;
const char* name(ConvolutionGraph graph);

struct ConvolutionShape {
  Shape x;  // (N, H, W, C)
  std::int64_t out_channels = 0;
  int kernel_size = 3, stride = 1, padding = 1;
  DType dtype = DType::fp32;
  bool tf32 = false;  // fp32 may be multiplied as tf32

  Shape y() const {
    return {x[0], (x[1] + 2 * padding - kernel_size) / stride + 1, (x[2] + 2 * padding - kernel_size) / stride + 1,
            out_channels};
  }
};
/// "(32, 32, 32, 64) -> 128, 3x3/2, fp16"
std::string text(const ConvolutionShape& shape);
/// The key under which choices for the shape are stored. The batch is the nearest power of two, so that ranks whose
/// batch is one sample smaller use the same plan.
std::string choice_text(const ConvolutionShape& shape);

/// Whether the graph is a convolution that ends in reductions. Statistics in types other than fp16 are computed this
/// way, since cuDNN's engines accept nothing else. cuDNN compiles a kernel for it like those for GPUs of compute
/// capability 8.
bool ends_in_reductions(ConvolutionGraph graph, const ConvolutionShape& shape);
/// Whether the second of a channel's two sums, which follows the first sums of all channels in fp32, is aligned to 16
/// bytes. cuDNN requires that.
bool aligns_reductions(const ConvolutionShape& shape);

/// Null: the graph has no such tensor.
struct ConvolutionTensors {
  const void* x = nullptr;
  const void* weight = nullptr;
  void* y = nullptr;
  float* statistics = nullptr;  // (2, K): sum y, sum y^2

  const void* scale_bias = nullptr;  // (2, C)
  const void* residual = nullptr;
  const void* residual_scale_bias = nullptr;  // (2, C)
  void* z = nullptr;

  const void* dy = nullptr;
  void* dx = nullptr;  // dx or dz
  const void* added = nullptr;
  void* dweight = nullptr;

  // For the batch norm of x, and below for that of the residual.
  const float* mean_inverse_stddev = nullptr;           // (2, C)
  const float* gamma = nullptr;                         // (C)
  const float* beta = nullptr;                          // (C)
  float* sums = nullptr;                                // (2, C): sum dz, sum dz * x_hat
  float* unused = nullptr;                              // (3, C): further outputs of the graph
  const float* residual_mean_inverse_stddev = nullptr;  // (2, C)
  const float* residual_gamma = nullptr;                // (C)
  const float* residual_beta = nullptr;                 // (C)
  float* residual_sums = nullptr;                       // (2, C)
  float* residual_unused = nullptr;                     // (3, C)
};

class PlannedConvolution {
 public:
  virtual ~PlannedConvolution() = default;
  virtual std::size_t workspace_bytes() const = 0;
  /// The plan's name: engine and knobs.
  virtual std::string plan() const = 0;
  /// The number of plans to choose from.
  virtual std::size_t n_plans() const = 0;
  /// `workspace` 256-byte aligned.
  virtual void run(const ConvolutionTensors& tensors, void* workspace, Stream& stream) = 0;
};

/// The number of plans that the graph has for the shape on the device; some of them may later turn out to be unusable.
std::size_t count_plans(ConvolutionGraph graph, const ConvolutionShape& shape, const CudaContext& context);

/// Null if the graph has no plan for the shape on the device. The plan is the one that context.algorithms has stored or
/// finds to be the fastest; null: the first of cuDNN's heuristics that produces the same bits in every run.
std::unique_ptr<PlannedConvolution> plan_convolution(ConvolutionGraph graph, const ConvolutionShape& shape,
                                                     const CudaContext& context);

// ---- For a GPU that is not here, if cuDNN cannot be asked either ----------------------------------------------------

/// Predicts which graphs have plans, by rules derived from cuDNN's answers (test/golden/cuda_plans_*.txt;
/// test/cuda/plans.cpp compares them with cuDNN).
bool has_plan_offline(ConvolutionGraph graph, const ConvolutionShape& shape, int compute_capability);
/// Its workspace is as large as a plan without timing may need, and it cannot run.
std::unique_ptr<PlannedConvolution> plan_offline(ConvolutionGraph graph, const ConvolutionShape& shape,
                                                 const CudaContext& context);

/// The key under which choices for the device and its libraries are stored: "NVIDIA H200, cuDNN 9.19.0".
std::string convolution_device(const CudaContext& context);

}  // namespace lockstep::cuda

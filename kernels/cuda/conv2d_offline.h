// Predicts which graphs of a convolution have plans on a GPU that is not here, if cuDNN cannot be asked either: rules
// derived from its answers (test/golden/cuda_plans_*.txt; test/cuda/plans.cpp compares them with cuDNN).
#pragma once

#include <memory>

#include "kernels/cuda/conv2d_bare.h"

namespace lockstep::cuda {

bool has_plan_offline(ConvolutionGraph graph, const ConvolutionShape& shape, int compute_capability);

/// Its workspace is as large as a plan without timing may need, and it cannot run.
std::unique_ptr<PlannedConvolution> plan_offline(ConvolutionGraph graph, const ConvolutionShape& shape,
                                                 const CudaContext& context);

}  // namespace lockstep::cuda

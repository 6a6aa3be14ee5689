// For tests: a backend whose ops are the CUDA backend's own sources, compiled for the host (runtime.h).
#pragma once

#include <memory>
#include <string>

#include "lockstep/backend.h"

namespace lockstep::test {

/// Each call runs its work before it returns. Plain loops in double replace cuDNN and cuBLASLt. `convolution`: the
/// level of fusion of convolutions (kernels/cuda/conv2d_plan.h); empty: the default.
std::unique_ptr<Backend> make_cuda_on_host_backend(const std::string& convolution = "",
                                                   std::shared_ptr<Algorithms> algorithms = nullptr);

/// What CapturedGraph::begin() adds to a list of launches (launches.h).
inline constexpr char kCapturedGraph[] = "a captured graph";

/// Whether device: cuda can be used here.
bool has_cuda_device();

}  // namespace lockstep::test

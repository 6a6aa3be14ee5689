// Matmul with bias on the device (cuBLASLt). Contract: lockstep/op.h, Matmul.
#pragma once

#include <memory>

#include "kernels/cuda/base/context.h"
#include "lockstep/algorithms.h"
#include "lockstep/op.h"

namespace lockstep::cuda {

std::unique_ptr<Matmul> make_matmul(const MatmulDescription& description, const CudaContext& context,
                                    Algorithms* algorithms = nullptr);

}  // namespace lockstep::cuda

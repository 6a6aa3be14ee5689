// Softmax cross entropy with label smoothing on the device. Contract: lockstep/op.h, SoftmaxCrossEntropy.
#pragma once

#include <memory>

#include "kernels/cuda/base/context.h"
#include "lockstep/op.h"

namespace lockstep::cuda {

std::unique_ptr<SoftmaxCrossEntropy> make_softmax_cross_entropy(const SoftmaxCrossEntropyDescription& description,
                                                                const CudaContext& context);

}  // namespace lockstep::cuda

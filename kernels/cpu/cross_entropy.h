// Softmax cross entropy with label smoothing (op.h), each row in fp64, rows summed in their order.
#pragma once

#include <memory>

#include "kernels/cpu/base/context.h"
#include "lockstep/op.h"

namespace lockstep::cpu {

std::unique_ptr<SoftmaxCrossEntropy> make_softmax_cross_entropy(const SoftmaxCrossEntropyDescription& description,
                                                                const CpuContext& context);

}  // namespace lockstep::cpu

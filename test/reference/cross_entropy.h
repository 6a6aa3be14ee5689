// Softmax cross entropy with label smoothing, straight from the formulas of lockstep/ops/cross_entropy.h.
#pragma once

#include "lockstep/ops/cross_entropy.h"

namespace lockstep::reference {

// T: float or double
/// What these logits (rows, classes) contribute to the sums.
template <typename T>
LossSums softmax_cross_entropy_forward(const SoftmaxCrossEntropyDescription& d, const T* logits,
                                       const std::int32_t* labels, const float* class_weights = nullptr,
                                       const MixedLabels& mixed = {});
template <typename T>
void softmax_cross_entropy_backward(const SoftmaxCrossEntropyDescription& d, const T* logits,
                                    const std::int32_t* labels, const float* class_weights, double loss_weight,
                                    T* dlogits, const MixedLabels& mixed = {});

}  // namespace lockstep::reference

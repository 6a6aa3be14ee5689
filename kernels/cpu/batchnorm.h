// Batch norm's own parts (op.h): statistics to scale and bias, and dz with its sums to dx.
// Its sums and its application are passes of the neighbouring ops (normalization.h).
#pragma once

#include <memory>

#include "kernels/cpu/base/context.h"
#include "lockstep/op.h"

namespace lockstep::cpu {

std::unique_ptr<BatchNorm> make_batch_norm(const BatchNormDescription& description, const CpuContext& context);

}  // namespace lockstep::cpu

// Matmul with bias on the CPU, by oneDNN's inner product. Contract: lockstep/op.h, Matmul.
#pragma once

#include <memory>

#include "kernels/cpu/base/context.h"
#include "lockstep/op.h"

namespace lockstep::cpu {

std::unique_ptr<Matmul> make_matmul(const MatmulDescription& description, const CpuContext& context);

}  // namespace lockstep::cpu

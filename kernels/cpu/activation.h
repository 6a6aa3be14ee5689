// Activation functions on the CPU as passes over memory, for the op of that name and for the matmul.
#pragma once

#include "kernels/cpu/base/context.h"
#include "lockstep/ops/activation_function.h"

namespace lockstep::cpu {

void run_activation(const ActivationPass& pass, const CpuContext& context);

}  // namespace lockstep::cpu

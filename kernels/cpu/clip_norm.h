// The global norm of the gradients in fp64, the same bits on any number of threads, the clipping coefficient,
// and whether the step is applied.
#pragma once

#include <memory>

#include "kernels/cpu/base/context.h"
#include "lockstep/op.h"

namespace lockstep::cpu {

std::unique_ptr<ClipNorm> make_clip_norm(const ClipNormDescription& description, const CpuContext& context);

}  // namespace lockstep::cpu

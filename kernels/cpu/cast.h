// Numbers in another type. Contract: lockstep/op.h, Cast.
#pragma once

#include <memory>

#include "kernels/cpu/base/context.h"
#include "lockstep/op.h"

namespace lockstep::cpu {

std::unique_ptr<Cast> make_cast(const CastDescription& description, const CpuContext& context);

}  // namespace lockstep::cpu

// Numbers in another type. Contract: lockstep/op.h, Convert.
#pragma once

#include <memory>

#include "kernels/cpu/base/context.h"
#include "lockstep/op.h"

namespace lockstep::cpu {

std::unique_ptr<Convert> make_convert(const ConvertDescription& description, const CpuContext& context);

}  // namespace lockstep::cpu

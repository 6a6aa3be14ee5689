// Numbers in another type, on the device. Contract: lockstep/op.h, Cast.
#pragma once

#include <memory>

#include "kernels/cuda/base/context.h"
#include "lockstep/op.h"

namespace lockstep::cuda {

std::unique_ptr<Cast> make_cast(const CastDescription& description, const CudaContext& context);

}  // namespace lockstep::cuda

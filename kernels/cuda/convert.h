// Numbers in another type, on the device. Contract: lockstep/op.h, Convert.
#pragma once

#include <memory>

#include "kernels/cuda/base/context.h"
#include "lockstep/op.h"

namespace lockstep::cuda {

std::unique_ptr<Convert> make_convert(const ConvertDescription& description, const CudaContext& context);

}  // namespace lockstep::cuda

// A 64-bit hash of device memory. Contract: lockstep/op.h, Hash.
#pragma once

#include <memory>

#include "kernels/cuda/base/context.h"
#include "lockstep/op.h"

namespace lockstep::cuda {

std::unique_ptr<Hash> make_hash(const HashDescription& description, const CudaContext& context);

}  // namespace lockstep::cuda

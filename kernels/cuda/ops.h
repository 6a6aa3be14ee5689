// Makes the ops of lockstep/op_list.h.
#pragma once

#include <memory>

#include "kernels/cuda/base/context.h"
#include "lockstep/op_table.h"

namespace lockstep::cuda {

/// Throws not_supported if there is no such op.
std::unique_ptr<Op> make_op(const OpRequest& request, const CudaContext& context);

}  // namespace lockstep::cuda

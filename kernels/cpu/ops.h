// Makes the ops of lockstep/op_list.h.
#pragma once

#include <memory>

#include "kernels/cpu/base/context.h"
#include "lockstep/op_table.h"

namespace lockstep::cpu {

/// Throws not_supported if there is no such op.
std::unique_ptr<Op> make_op(const OpRequest& request, const CpuContext& context);

}  // namespace lockstep::cpu

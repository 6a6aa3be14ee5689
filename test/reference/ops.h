// Makes the ops of lockstep/op_list.h.
#pragma once

#include <memory>

#include "lockstep/op.h"

namespace lockstep::reference {

/// The reference needs to know nothing about the machine.
struct Context {};

/// Throws not_supported if there is no such op.
std::unique_ptr<Op> make_op(const OpRequest& request, const Context& context);

}  // namespace lockstep::reference

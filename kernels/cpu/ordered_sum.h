// One leaf of a sum by a binary tree (op.h).
#pragma once

#include <memory>

#include "kernels/cpu/base/context.h"
#include "lockstep/op.h"

namespace lockstep::cpu {

std::unique_ptr<OrderedSum> make_ordered_sum(const OrderedSumDescription& description, const CpuContext& context);

}  // namespace lockstep::cpu

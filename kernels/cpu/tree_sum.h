// One leaf of a sum by a binary tree (op.h).
#pragma once

#include <memory>

#include "kernels/cpu/base/context.h"
#include "lockstep/op.h"

namespace lockstep::cpu {

std::unique_ptr<TreeSum> make_tree_sum(const TreeSumDescription& description, const CpuContext& context);

}  // namespace lockstep::cpu

// One leaf of a sum by a binary tree on the device. Contract: lockstep/op.h, TreeSum.
#pragma once

#include <memory>

#include "kernels/cuda/base/context.h"
#include "lockstep/op.h"

namespace lockstep::cuda {

std::unique_ptr<TreeSum> make_tree_sum(const TreeSumDescription& description, const CudaContext& context);

}  // namespace lockstep::cuda

// One leaf of a sum by a binary tree on the device. Contract: lockstep/op.h, OrderedSum.
#pragma once

#include <memory>

#include "kernels/cuda/base/context.h"
#include "lockstep/op.h"

namespace lockstep::cuda {

std::unique_ptr<OrderedSum> make_ordered_sum(const OrderedSumDescription& description, const CudaContext& context);

}  // namespace lockstep::cuda

// SGD, AdamW and LARS over the whole parameter arena in one pass (op.h has the formulas), segments in blocks over
// threads; LARS takes its norms in a pass before that.
#pragma once

#include <memory>

#include "kernels/cpu/base/context.h"
#include "lockstep/op.h"

namespace lockstep::cpu {

std::unique_ptr<Optimizer> make_optimizer(const OptimizerDescription& description, const CpuContext& context);

}  // namespace lockstep::cpu

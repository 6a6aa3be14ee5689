// xxh3 of memory, to compare replicas.
#pragma once

#include <memory>

#include "kernels/cpu/base/context.h"
#include "lockstep/op.h"

namespace lockstep::cpu {

std::unique_ptr<Hash> make_hash(const HashDescription& description, const CpuContext& context);

}  // namespace lockstep::cpu

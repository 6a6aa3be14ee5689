// xxh3 of memory, to compare replicas.
#pragma once

#include <memory>

#include "kernels/cpu/context.h"
#include "lockstep/op.h"

namespace lockstep::cpu {

std::unique_ptr<Hash> make_hash(const HashDescription& description, const CpuContext& context);

}  // namespace lockstep::cpu

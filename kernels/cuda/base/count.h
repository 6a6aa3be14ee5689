// What a stream writes to pinned memory when it reaches a point. Contract: lockstep/backend.h, Backend::count.
#pragma once

#include <cstdint>

#include "lockstep/backend.h"

namespace lockstep::cuda {

void count(StreamProgress* h_progress, std::uint64_t what, Stream& stream);

}  // namespace lockstep::cuda

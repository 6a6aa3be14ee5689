// What a stream writes to pinned memory when it reaches a point. Contract: lockstep/backend.h,
// Backend::record_progress.
#pragma once

#include <cstdint>

#include "lockstep/backend.h"

namespace lockstep::cuda {

void record_progress(StreamProgress* h_progress, std::uint64_t what, Stream& stream);

}  // namespace lockstep::cuda

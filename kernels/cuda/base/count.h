// What a stream tells in pinned memory when it comes there. Contract: lockstep/backend.h, Backend::count.
#pragma once

#include <cstdint>

#include "lockstep/backend.h"

namespace lockstep::cuda {

void count(StreamProgress* h_progress, std::uint64_t what, Stream& stream);

}  // namespace lockstep::cuda

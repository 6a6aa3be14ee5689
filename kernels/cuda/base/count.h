// A counter in pinned memory that a stream raises when it comes there. Contract: lockstep/backend.h, Backend::count.
#pragma once

#include <cstdint>

#include "lockstep/event.h"

namespace lockstep::cuda {

void add_one(std::uint64_t* h_counter, Stream& stream);

}  // namespace lockstep::cuda

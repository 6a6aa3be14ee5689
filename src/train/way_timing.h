// Rank 0 times the ways to compute each layer (lockstep/algorithms.h), which on a device with hundreds of plans takes
// minutes; the other ranks wait for it in short broadcasts, so that the watchdog sees it at work.
#pragma once

#include <functional>

#include "lockstep/algorithms.h"
#include "lockstep/communicator.h"

namespace lockstep::train {

/// Collective. On rank 0 `plan` asks for the ways, and `save` is called every 10 s with what was found so far, and at
/// the end; on the others neither. Throws what `plan` throws.
void time_ways(World& world, Algorithms& algorithms, const std::function<void()>& plan,
               const std::function<void(const Algorithms::Choices&)>& save);

}  // namespace lockstep::train

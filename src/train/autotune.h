// Autotuning: rank 0 times the algorithms of each layer (lockstep/algorithms.h), which takes minutes on a device with
// hundreds of plans. Every rank tells the others every quarter of a second whether a signal asks it to stop. So the
// watchdog sees rank 0 at work, too.
#pragma once

#include <functional>

#include "lockstep/algorithms.h"
#include "lockstep/communicator.h"

namespace lockstep::train {

/// Collective. On rank 0, `plan` selects the algorithms, and `save` is called every 10 s with the choices made so far,
/// and at the end. On other ranks neither is called. Throws what `plan` throws, and StoppedBySignal on all ranks if a
/// signal arrives on any of them; the choices made so far are saved.
void autotune(World& world, Algorithms& algorithms, const std::function<void()>& plan,
              const std::function<void(const Algorithms::Choices&)>& save);

}  // namespace lockstep::train

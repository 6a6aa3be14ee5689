// Autotuning: rank 0 times the algorithms of each layer (lockstep/algorithms.h), which takes minutes on a device with
// hundreds of plans. Every quarter of a second, the ranks exchange whether a signal asked one of them to stop, so
// that the watchdog also sees rank 0 at work.
#pragma once

#include <functional>

#include "lockstep/algorithms.h"
#include "lockstep/communicator.h"

namespace lockstep::train {

/// Collective. On rank 0, `plan` selects the algorithms, and `save` is called every 10 s to
/// store the choices made so far, and at the end. On other ranks neither is called. Throws what `plan` throws, and
/// StoppedBySignal on all ranks if a signal arrives on any of them; the choices made so far are saved.
void autotune(World& world, Algorithms& algorithms, const std::function<void()>& plan,
              const std::function<void()>& save);

}  // namespace lockstep::train

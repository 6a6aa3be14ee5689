// Checks that all ranks hold the same bits, and names the rank that differs.
#pragma once

#include <cstdint>

#include "lockstep/communicator.h"

namespace lockstep::train {

/// Collective. Throws replicas_differ on every rank, naming the rank and host whose hash differs from that of the
/// majority.
void require_equal_replicas(World& world, std::uint64_t hash, std::int64_t steps_done);

}  // namespace lockstep::train

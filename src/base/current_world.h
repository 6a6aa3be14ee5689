// The world that main must end when a command throws. A command that starts MPI stores its World here:
//   World& world = *(current_world() = comm::start_world(...));
// so that it outlives the exception and main can end all ranks at once.
#pragma once

#include <memory>

#include "lockstep/communicator.h"

namespace lockstep {

std::unique_ptr<World>& current_world();

}  // namespace lockstep

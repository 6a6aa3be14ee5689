#include "base/current_world.h"

namespace lockstep {

std::unique_ptr<World>& current_world() {
  static std::unique_ptr<World> world;
  return world;
}

}  // namespace lockstep

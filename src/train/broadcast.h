// Sends text from rank 0 to every rank.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "lockstep/communicator.h"

namespace lockstep::train {

/// Collective: `text` becomes that of rank 0.
inline void broadcast_text(World& world, std::string& text) {
  std::uint64_t length = text.size();
  world.broadcast(std::as_writable_bytes(std::span(&length, 1)), 0);
  text.resize(length);
  world.broadcast(std::as_writable_bytes(std::span(text)), 0);
}

}  // namespace lockstep::train

// Memory that a communicator takes from a backend: what Communicator::allocate() promises of it, and which slices lie
// in it.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/communicator.h"

namespace lockstep::comm {

/// Zero-filled, 4096-byte aligned.
std::unique_ptr<Memory> allocate_aligned(Backend& backend, std::size_t size_bytes, const std::string& purpose);

class Regions {
 public:
  /// Collective. `keep`, if any, is called with the new memory; what it gives is let go just before the memory is.
  std::unique_ptr<Memory> allocate(World& world, Backend& backend, std::size_t size_bytes, const std::string& purpose,
                                   const std::function<std::shared_ptr<void>(const Memory&)>& keep = {});

  /// Throws where a slice lies elsewhere, or is of a type that is not summed.
  void check(const Slice& slice, const std::string& label) const;

 private:
  class Region;
  std::shared_ptr<std::vector<const Memory*>> all_ = std::make_shared<std::vector<const Memory*>>();
};

}  // namespace lockstep::comm

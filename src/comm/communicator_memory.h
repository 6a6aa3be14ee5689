// The memory that a communicator allocates from a backend (see Communicator::allocate()), and the checks of the
// arguments of exchange_async() that communicators have in common. A failed check throws Error (internal).
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

/// True if all of the slice is in `memory`.
bool contains(const Memory& memory, const Slice& slice);
/// Checks that the bounds are those of shards and, if the exchange sums, that ranks can sum the type of the slice.
void check_exchange(const Exchange& exchange, int n_ranks, const std::string& label);
/// Checks that the communicator was made for Slice::wire. `wire` is the narrowest type that it sends.
void check_wire(const Slice& slice, DType wire, const std::string& label);
/// Checks that `done` is a HostEvent, which works between threads of the host.
HostEvent& host_event(Event& done, const std::string& label);

class CommunicatorMemory {
 public:
  using Attach = std::function<std::shared_ptr<void>(const Memory&)>;
  /// Collective. Once all ranks have the memory, `attach` is called with it, if given; it may be collective too. What
  /// it returns is released just before the memory. `memory`: memory that was allocated elsewhere; null: the backend
  /// allocates it.
  std::unique_ptr<Memory> allocate(World& world, Backend& backend, std::size_t size_bytes, const std::string& purpose,
                                   const Attach& attach = {}, std::unique_ptr<Memory> memory = nullptr);

  /// Checks that the slice is in memory that allocate() returned.
  void check_contains(const Slice& slice, const std::string& label) const;

 private:
  class Region;
  std::shared_ptr<std::vector<const Memory*>> regions_ = std::make_shared<std::vector<const Memory*>>();
};

}  // namespace lockstep::comm

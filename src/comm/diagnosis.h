// What `lockstep doctor` measures between ranks, besides the all-reduces of a Communicator. All calls are collective:
// every rank makes them in the same order. They throw Error if a rank is lost, so that none hangs.
#pragma once

#include <cstddef>
#include <memory>

#include "lockstep/communicator.h"
#include "lockstep/config.h"

namespace lockstep::comm {

/// start_world() without the check that all ranks run the same build: a job with different builds is examined, not
/// rejected.
std::unique_ptr<World> start_world_of_any_builds(int* argc, char*** argv,
                                                 double watchdog_seconds = Config::Comm{}.watchdog_seconds);

/// A communicator over the ranks of this node only: Communicator::size() is still that of the world. Null on
/// all ranks if some node has one rank, if there is only one node, or if the ranks sum on devices.
std::unique_ptr<Communicator> make_node_communicator(World& world, Backend& backend);

struct PairTime {
  std::size_t size_bytes = 0;  // in each direction, at the same time
  double seconds = 0;          // for them
};

/// Messages between two ranks through MPI, in host memory.
class PairProbe {
 public:
  virtual ~PairProbe() = default;
  /// Sends to `peer` and receives the same amount from it, once both ranks are ready. -1: this rank has no peer in this
  /// round.
  virtual PairTime exchange(int peer) = 0;
};
/// Null in a world of one rank.
std::unique_ptr<PairProbe> make_pair_probe(World& world);

}  // namespace lockstep::comm

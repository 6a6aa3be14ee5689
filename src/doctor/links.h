// What ranks exchange: all-reduces, pairs of ranks, the network in use, and the clocks.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "comm/links.h"
#include "doctor/check.h"
#include "doctor/device.h"
#include "lockstep/backend.h"

namespace lockstep::comm {
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Interface, name, kind, bytes_per_second, sent_bytes)
}  // namespace lockstep::comm

namespace lockstep::doctor {

using comm::Interface;

/// All-reduces of one size, as in nccl-tests: algbw = size / time, busbw = algbw 2 (n - 1) / n.
struct AllReduceTime {
  std::string where{};  // "all ranks", "inside each node"
  int n_ranks = 0;      // that sum together
  double size_bytes = 0, seconds = 0;
  double algorithm_bandwidth() const { return size_bytes / seconds; }
  double bus_bandwidth() const { return algorithm_bandwidth() * 2 * (n_ranks - 1) / n_ranks; }
};
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(AllReduceTime, where, n_ranks, size_bytes, seconds)

struct RankPair {
  int a = 0, b = 0;             // a < b
  double bytes_per_second = 0;  // in each direction
};
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(RankPair, a, b, bytes_per_second)

struct LinkFacts {
  std::string transport{};              // Communicator::describe()
  std::vector<Interface> interfaces{};  // of the node; sent_bytes: during the all-reduces of 51 MB
  double expected_sent_bytes = 0;       // by a node, during them
  std::vector<AllReduceTime> times{};   // the same on all ranks
  std::vector<RankPair> pairs{};        // in which this rank was `a`
  double clock_skew_seconds = 0, clock_uncertainty_seconds = 0;  // relative to rank 0
};
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(LinkFacts, transport, interfaces, expected_sent_bytes, times, pairs,
                                   clock_skew_seconds, clock_uncertainty_seconds)

/// quick: without the all-reduce of 1 GB and the pairs of ranks.
enum class Effort : std::uint8_t { quick, full };

/// Collective. What is left out for lack of memory is added to `notes`.
LinkFacts measure_links(World& world, Backend& backend, const std::vector<Place>& places, Effort effort,
                        std::vector<std::string>& notes);

/// The peer of each rank in each round, -1: none. First the pairs inside nodes, then those of ranks with the same local
/// rank on different nodes, one local rank after another, so that no two pairs share a network interface. Every pair
/// occurs once if `most_rounds` rounds suffice for that.
std::vector<std::vector<int>> pair_rounds(const std::vector<Place>& places, std::size_t most_rounds);

/// `devices`: their memory and links determine what an all-reduce inside a node should reach.
std::vector<Check> check_links(const std::vector<Place>& places, const std::vector<LinkFacts>& links,
                               const std::vector<DeviceFacts>& devices);

}  // namespace lockstep::doctor

// What ranks exchange: all-reduces, pairs of ranks, the network in use, and the clocks.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "doctor/check.h"
#include "doctor/facts.h"
#include "lockstep/backend.h"

namespace lockstep::doctor {

/// quick: without the all-reduce of 1 GB and the pairs of ranks.
enum class Effort : std::uint8_t { quick, full };

/// Collective. What is left out for lack of memory is added to `notes`.
LinkFacts measure_links(World& world, Backend& backend, Effort effort, std::vector<std::string>& notes);

/// The peer of each rank in each round, -1: none. First the pairs inside nodes, then those of ranks with the same local
/// rank on different nodes, one local rank after another, so that no two pairs share a network interface. Every pair
/// occurs once if `most_rounds` rounds suffice for that.
std::vector<std::vector<int>> pair_rounds(const std::vector<Place>& places, std::size_t most_rounds);

/// `devices`: their memory and links determine what an all-reduce inside a node should reach.
std::vector<Check> check_links(const std::vector<Place>& places, const std::vector<LinkFacts>& links,
                               const std::vector<DeviceFacts>& devices);

/// The network interfaces and InfiniBand ports that are up, below `sys` ("/sys").
std::vector<Interface> interfaces_in(const std::string& sys);

}  // namespace lockstep::doctor

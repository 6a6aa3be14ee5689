// Ranks and checks for the tests of verdicts.
#pragma once

#include <string>
#include <vector>

#include "doctor/check.h"

namespace lockstep::doctor {

/// Ranks in equal blocks on nodes "node1", "node2", ...
inline std::vector<Place> places_on(int n_nodes, int ranks_per_node) {
  std::vector<Place> places;
  for (int rank = 0; rank < n_nodes * ranks_per_node; ++rank)
    places.push_back({.rank = rank,
                      .node = rank / ranks_per_node,
                      .local_rank = rank % ranks_per_node,
                      .local_size = ranks_per_node,
                      .host = "node" + std::to_string(rank / ranks_per_node + 1)});
  return places;
}

/// The checks with this name, each as "STATUS WHERE".
inline std::vector<std::string> verdicts(const std::vector<Check>& checks, const std::string& of) {
  std::vector<std::string> out;
  for (const Check& check : checks)
    if (check.name == of) out.push_back(name(check.status) + " " + check.scope);
  return out;
}

/// The checks that fail or warn without a remedy, or pass with one. There must be none.
inline std::vector<std::string> without_remedy(const std::vector<Check>& checks) {
  std::vector<std::string> out;
  for (const Check& check : checks)
    if ((check.status == Status::pass) != check.remedy.empty()) out.push_back(check.name);
  return out;
}

}  // namespace lockstep::doctor

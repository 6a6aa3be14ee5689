// Which cases a study has, in which order they run, and the configuration of each.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/config.h"
#include "scaling/study.h"

namespace lockstep::scaling {

struct Size {
  int ranks = 1, nodes = 1;
};

/// Parses "1,2,4,8" to numbers in ascending order. Throws usage, naming `option`, for anything else. `if_twice`: the
/// remedy if a number occurs twice.
std::vector<int> sizes_in(const std::string& text, const std::string& option,
                          const std::string& if_twice = "give each number once");
/// One size per number. `are_nodes`: each with `ranks_per_node` ranks. Otherwise they are ranks, on one node or, if
/// ranks_per_node is not 0, on as few nodes as they need; throws usage if they do not fill these nodes.
std::vector<Size> sizes_of(const std::vector<int>& numbers, bool are_nodes, int ranks_per_node);

/// Each size once per repeat. The repeats follow each other, and the order within each is shuffled. A drift of the
/// machine then affects all sizes alike, and an interrupted study has about the same number of repeats of each size.
std::vector<Case> make_cases(const std::vector<Size>& sizes, int repeats, std::uint64_t seed);

/// What the configuration says: strong if train.global_batch is in effect, weak if train.batch_per_rank is.
Scaling scaling_of(const Config& config);
/// Study::batch for the smallest size, which trains what the configuration says. Throws usage if the batch is not a
/// number or cannot be divided.
std::int64_t batch_of(const Config& config, Scaling scaling, int fewest_ranks);

/// The configuration of a case: its batch and its directory, `study.steps` steps that are all logged, the memory every
/// half second, no evaluation, and no checkpoint before the end. Throws if it is not possible (config_*, usage).
Config configuration_of(const Study& study, const Case& a_case, Config config);

}  // namespace lockstep::scaling

// How similar two words are, for messages that suggest what may have been meant.
#pragma once

#include <cstddef>
#include <string_view>

namespace lockstep {

/// The number of insertions, deletions, substitutions and swaps of neighbours (optimal string alignment).
std::size_t edit_distance(std::string_view a, std::string_view b);

}  // namespace lockstep

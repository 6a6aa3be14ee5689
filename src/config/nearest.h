// Finds the keys that somebody who wrote an unknown one probably meant.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace lockstep::config {

/// The end of a message about an unknown key: "; the nearest is train.epochs", "; the nearest are ...", or the command
/// that lists the keys of its group. Empty if nothing is near.
std::string nearest_text(std::string_view unknown);

/// The most similar of these words; empty if none is similar.
std::string nearest_word(std::string_view word, const std::vector<std::string>& words);

}  // namespace lockstep::config

// Finds the keys that somebody who wrote an unknown one probably meant.
#pragma once

#include <string>
#include <string_view>

namespace lockstep::config {

/// The end of a message about an unknown key: "; the nearest is train.epochs", "; the nearest are ...", or what lists
/// the keys of its group. Empty if nothing is near.
std::string nearest_text(std::string_view unknown);

}  // namespace lockstep::config

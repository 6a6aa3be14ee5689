// The keys of `hardware`: what `lockstep plan` knows about a machine.
#pragma once

#include <vector>

#include "config/table.h"

namespace lockstep::config {

std::vector<Key> hardware_keys();

}  // namespace lockstep::config

// The processors of each node: which ranks use which, and what else runs on them.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "doctor/check.h"
#include "doctor/facts.h"

namespace lockstep::doctor {

/// Collective: the ranks are idle for half a second, during which the first rank of each node looks at other processes.
HostFacts measure_host(World& world);

/// The mode of the kernel's file: "always [madvise] never" is madvise.
std::string selected_word(std::string_view text);

std::vector<Check> check_hosts(const std::vector<Place>& places, const std::vector<HostFacts>& hosts);

}  // namespace lockstep::doctor

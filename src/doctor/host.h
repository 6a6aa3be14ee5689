// The processors of each node: which ranks use which, and what else runs on them.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "doctor/check.h"
#include "doctor/facts.h"

namespace lockstep::doctor {

/// Collective: the ranks are idle for half a second, during which the first rank of each node looks at other processes.
/// `pci_bus`: of this rank's device (DeviceInfo::pci_bus).
HostFacts measure_host(World& world, const std::string& pci_bus);

/// The selected mode in a file of the kernel: "always [madvise] never" is madvise.
std::string selected_word(std::string_view text);
/// The numbers in a Linux CPU list: "0-2,8" is {0, 1, 2, 8}. Empty if it is not such a list.
std::vector<int> processors_in(const std::string& list);
/// The processors of the socket, or of the part of it, to which a PCI device is attached. Empty: unknown.
std::vector<int> processors_near(std::string pci_bus, const std::string& folder = "/sys/bus/pci/devices");

std::vector<Check> check_hosts(const std::vector<Place>& places, const std::vector<HostFacts>& hosts);

}  // namespace lockstep::doctor

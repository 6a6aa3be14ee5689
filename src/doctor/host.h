// The processors of each node: which ranks use which, and what else runs on them.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "doctor/check.h"

namespace lockstep::doctor {

struct OtherProcess {
  long pid = 0;
  std::string name{};
  double cores = 0;   // that it kept busy, on average
  int processor = 0;  // on which it ran last
};
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(OtherProcess, pid, name, cores, processor)

struct HostFacts {
  std::vector<int> processors{};       // that this rank may use
  std::vector<int> near_device{};      // of the node, nearest to this rank's GPU; empty: unknown, or no GPU
  int n_threads = 1;                   // that it uses
  int n_processors = 1;                // of the node
  std::string huge_pages{};            // "always", "madvise" or "never"; empty: unknown
  std::vector<OtherProcess> others{};  // of the node, while the ranks were idle; measured by its first rank
};
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(HostFacts, processors, near_device, n_threads, n_processors, huge_pages, others)

/// Collective: the ranks are idle for half a second, during which the first rank of each node looks at other processes.
/// `pci_bus`: of this rank's device (DeviceInfo::pci_bus).
HostFacts measure_host(World& world, const std::string& pci_bus);

/// The selected mode in a file of the kernel: "always [madvise] never" is madvise.
std::string selected_word(std::string_view text);

std::vector<Check> check_hosts(const std::vector<Place>& places, const std::vector<HostFacts>& hosts);

}  // namespace lockstep::doctor

// Information about processes and this machine's processors.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace lockstep {

std::uint64_t peak_memory_bytes();                       // VmHWM
std::uint64_t resident_memory_bytes();                   // VmRSS
std::uint64_t file_size_bytes(const std::string& path);  // 0 when missing
std::string environment(const char* name);               // empty when not set
/// Raises the limit on open files (`ulimit -n`) as far as is allowed and useful. Throws system_call if it stays too low
/// to run any command.
void raise_limit_of_open_files();
/// The processors that this process may use, "0-3,8".
std::string processor_mask();
int n_usable_processors();
std::vector<int> usable_processors();
int n_processors();  // of the node
/// The numbers in a Linux CPU list: "0-2,8" is {0, 1, 2, 8}. Empty if it is not such a list.
std::vector<int> processors_in(const std::string& list);
inline constexpr const char* kPciDevices = "/sys/bus/pci/devices";
/// The processors of the socket, or of the part of it, to which a PCI device is attached. Empty: unknown.
std::vector<int> processors_near(std::string pci_bus, const std::string& folder = kPciDevices);
/// From now on, this thread and those that it starts use only the processors near the device, if at least `n_threads`
/// of those that it may use are. The system then also places the memory that they touch first, or pin, near the device.
void stay_near(const std::string& pci_bus, int n_threads, const std::string& folder = kPciDevices);

/// The name of this host; empty if the system does not tell it.
std::string host_name();

/// What /proc reports about a process. Times are relative to the start of the host. pid and start_ticks together
/// identify a process; a pid alone may be reused.
struct ProcessFacts {
  unsigned long long start_ticks = 0;
  double age_seconds = 0, cpu_seconds = 0;  // of all its threads
  std::uint64_t resident_bytes = 0;
};
/// Empty if there is no such process on this host, or if it is a zombie.
std::optional<ProcessFacts> process_facts(long pid);

}  // namespace lockstep

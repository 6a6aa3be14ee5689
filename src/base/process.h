// Information about processes and this machine's processors.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

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
int n_processors();  // of the node

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

// Facts about this process and the files it wrote.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace lockstep {

std::uint64_t peak_memory_bytes();                       // VmHWM
std::uint64_t resident_memory_bytes();                   // VmRSS
std::uint64_t file_size_bytes(const std::string& path);  // 0 when missing
/// Numbers of the processors this process may run on, "0-3,8".
std::string processor_mask();
int n_usable_processors();
int n_processors();  // of the node

/// What /proc tells of a process; times since the host's start. The pid and start_ticks name a process for ever, a pid
/// alone until the next process gets it.
struct ProcessFacts {
  unsigned long long start_ticks = 0;
  double age_seconds = 0, cpu_seconds = 0;  // of all its threads
  std::uint64_t resident_bytes = 0;
};
/// Nothing where there is no such process here, or only its remains.
std::optional<ProcessFacts> process_facts(long pid);

}  // namespace lockstep

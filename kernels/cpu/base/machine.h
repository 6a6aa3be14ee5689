// What this process may use of its machine: cores and memory.
#pragma once

#include <cstddef>
#include <string>

namespace lockstep::cpu {

/// Threads of a rank that may run on `cores`, started by a launcher that may run on `launcher_cores`, one of
/// `local_size` ranks on its node. A rank with fewer cores than its launcher has them for itself; else they are shared.
int threads_of_rank(int cores, int launcher_cores, int local_size);
/// The same for this process, asked of the system.
int threads_of_this_rank(int local_size);

/// Free for this process: the least of the memory available and what its control groups leave, in bytes.
std::size_t available_memory_bytes();

/// "AMD EPYC 9554"
std::string processor_name();

}  // namespace lockstep::cpu

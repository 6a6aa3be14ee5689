// What this process may use of its machine: cores and memory.
#pragma once

#include <cstddef>
#include <string>

namespace lockstep::cpu {

/// Threads of a rank that may run on `cores`, started by a launcher that may run on `launcher_cores`, one of
/// `local_size` ranks on its node. A rank with fewer cores than its launcher owns them; otherwise ranks divide them.
int threads_of_rank(int cores, int launcher_cores, int local_size);
/// The same for this process, with the numbers that the system reports.
int threads_of_this_rank(int local_size);

/// Bytes that this process can still allocate: the least of the available memory and what its control groups leave.
std::size_t available_memory_bytes();

/// "AMD EPYC 9554"
std::string processor_name();

}  // namespace lockstep::cpu

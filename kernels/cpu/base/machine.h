// What this process may use of its machine: cores, memory and instructions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <iosfwd>
#include <optional>
#include <string>

namespace lockstep::cpu {

/// Threads of a rank that may run on `cores`, started by a launcher that may run on `launcher_cores`, one of
/// `local_size` ranks on its node. A rank with fewer cores than its launcher owns them; otherwise ranks divide them.
int threads_of_rank(int cores, int launcher_cores, int local_size);
/// The same for this process, with the numbers that the system reports.
int threads_of_this_rank(int local_size);

/// "MemTotal:       24607944 kB" of /proc/meminfo below `root`, in bytes.
std::optional<std::size_t> reported_memory_bytes(const std::string& key, const std::string& root = "");

/// Bytes that this process can still allocate: the least of the available memory and what its control groups leave.
std::size_t available_memory_bytes();

/// The instructions that kernels and libraries may use, from the environment variable LOCKSTEP_MAX_ISA: "avx2",
/// "avx512" (without bf16), "avx512_bf16" (without AMX), or empty for everything that the processor has. This makes one
/// machine compute like others. Throws Error (not_supported) for any other value.
enum class MaxIsa : std::uint8_t { avx2, avx512, avx512_bf16, all };
MaxIsa max_isa();

/// "AMD EPYC 9554", or "ARM Neoverse-V2" where the system reports numbers only (aarch64).
std::string processor_name();
/// The same from the content of /proc/cpuinfo.
std::string processor_name(std::istream& cpuinfo);

}  // namespace lockstep::cpu

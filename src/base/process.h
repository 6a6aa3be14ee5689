// Facts about this process and the files it wrote.
#pragma once

#include <cstdint>
#include <string>

namespace lockstep {

std::uint64_t peak_memory_bytes();                       // VmHWM
std::uint64_t resident_memory_bytes();                   // VmRSS
std::uint64_t file_size_bytes(const std::string& path);  // 0 when missing
/// Numbers of the processors this process may run on, "0-3,8".
std::string processor_mask();
int n_usable_processors();
int n_processors();  // of the node

}  // namespace lockstep

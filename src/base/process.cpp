#include "base/process.h"

#include <sched.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <fstream>

namespace lockstep {

namespace {

/// A line "VmHWM:   1234 kB" of /proc/self/status, in bytes.
std::uint64_t status_bytes(const char* key) {
  std::ifstream in("/proc/self/status");
  for (std::string line; std::getline(in, line);)
    if (line.starts_with(key)) return std::strtoull(line.c_str() + std::strlen(key), nullptr, 10) * 1024;
  return 0;
}

}  // namespace

std::uint64_t peak_memory_bytes() { return status_bytes("VmHWM:"); }
std::uint64_t resident_memory_bytes() { return status_bytes("VmRSS:"); }

std::uint64_t file_size_bytes(const std::string& path) {
  struct stat info {};
  return ::stat(path.c_str(), &info) == 0 ? static_cast<std::uint64_t>(info.st_size) : 0;
}

std::string processor_mask() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) != 0) return "?";
  std::string out;
  for (int i = 0; i < CPU_SETSIZE; ++i) {
    if (!CPU_ISSET(i, &set)) continue;
    int last = i;
    while (last + 1 < CPU_SETSIZE && CPU_ISSET(last + 1, &set)) ++last;
    out += (out.empty() ? "" : ",") + std::to_string(i) + (last > i ? "-" + std::to_string(last) : "");
    i = last;
  }
  return out;
}

int n_usable_processors() {
  cpu_set_t set;
  CPU_ZERO(&set);
  return sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : 1;
}

int n_processors() { return static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN)); }

}  // namespace lockstep

#include "lockstep/memory_limit.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <limits>

#include "lockstep/error.h"

namespace lockstep {
namespace {

// What libraries allocate at once: stacks of threads (8 MiB each), code, descriptions of files.
constexpr std::uint64_t kReachedBytes = std::uint64_t{64} << 20;
constexpr std::uint64_t kUnlimited = std::uint64_t{1} << 60;

/// The value of a line such as "VmPeak:   1234 kB", in bytes.
std::uint64_t value_of(const char* status, const char* key) {
  const char* line = std::strstr(status, key);
  return line == nullptr ? 0 : std::strtoull(line + std::strlen(key), nullptr, 10) * 1024;
}

/// The number after `key` in a file, or the number that the file begins with.
std::uint64_t read_number(const std::string& path, std::string_view key, std::uint64_t otherwise) {
  std::ifstream file(path);
  std::uint64_t value = 0;
  for (std::string word; !key.empty() && file >> word;)
    if (word == key) break;
  return file >> value ? value : otherwise;  // "max" is not a number: no limit
}

/// The group that leaves least memory free, from the process's own group up to the root. Cached files do not count,
/// since the system drops them first.
struct ControlGroup {
  std::string name;
  MemoryLimit memory{};
};
ControlGroup tightest_group() {
  ControlGroup tightest;
  std::ifstream file("/proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {  // "0::/GROUP" of version 2, "4:memory:/GROUP" of version 1
    const std::size_t begin = line.find(':') + 1, end = std::min(line.find(':', begin), line.size());
    const bool is_v1 = ("," + line.substr(begin, end - begin) + ",").find(",memory,") != std::string::npos;
    if (!is_v1 && begin != end) continue;
    const std::string root = is_v1 ? "/sys/fs/cgroup/memory" : "/sys/fs/cgroup", of_all = is_v1 ? "total_" : "";
    std::string group = line.substr(std::min(end + 1, line.size()));
    while (true) {
      const std::string memory = root + group + "/memory.", stat = memory + "stat";
      MemoryLimit found{.what = "",
                        .limit_bytes = read_number(memory + (is_v1 ? "limit_in_bytes" : "max"), "", kUnlimited)};
      found.used_bytes = read_number(memory + (is_v1 ? "usage_in_bytes" : "current"), "", 0);
      found.used_bytes -= std::min(found.used_bytes, read_number(stat, of_all + "active_file", 0) +
                                                         read_number(stat, of_all + "inactive_file", 0));
      found.peak_bytes = found.used_bytes;
      if (found.limit_bytes < kUnlimited && found.free_bytes() < tightest.memory.free_bytes())
        tightest = {group.empty() ? "/" : group, found};
      if (group.empty() || group == "/") break;
      group.erase(group.rfind('/'));
    }
  }
  return tightest;
}

}  // namespace

bool MemoryLimit::is_reached() const { return limit_bytes < peak_bytes + std::max(kReachedBytes, limit_bytes / 8); }

MemoryLimit limit_of_process() noexcept {
  std::array<char, 4096> status{};
  const int file = ::open("/proc/self/status", O_RDONLY | O_CLOEXEC);
  if (file < 0 || ::read(file, status.data(), status.size() - 1) < 0) status[0] = '\0';
  if (file >= 0) ::close(file);
  MemoryLimit tightest;
  const auto consider = [&](auto resource, const char* used, const char* peak, std::string_view what) {
    rlimit limit{};
    if (::getrlimit(resource, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return;
    const MemoryLimit found{what, limit.rlim_cur, value_of(status.data(), used), value_of(status.data(), peak)};
    if (found.free_bytes() < tightest.free_bytes()) tightest = found;
  };
  consider(RLIMIT_AS, "VmSize:", "VmPeak:", "`ulimit -v` limits the address space of this process");
  consider(RLIMIT_DATA, "VmData:", "VmData:", "`ulimit -d` limits the data of this process");
  return tightest;
}

std::string memory_limit_in_message() {
  const MemoryLimit process = limit_of_process();
  const ControlGroup group = tightest_group();
  const bool is_of_process = process.is_reached() || process.free_bytes() <= group.memory.free_bytes();
  if (is_of_process && process.what.empty()) return "";
  const MemoryLimit& limit = is_of_process ? process : group.memory;
  const auto mib = [](std::uint64_t bytes) { return static_cast<double>(bytes) / (1 << 20); };
  return fmt::format(
      ": {} to {:.1f} MiB, of which {:.1f} MiB were used; raise that limit, or use less",
      is_of_process ? std::string(process.what) : fmt::format("the control group {} limits memory", group.name),
      mib(limit.limit_bytes), mib(limit.peak_bytes));
}

std::size_t memory_left_to_control_groups() { return tightest_group().memory.free_bytes(); }

void require_mappable(std::size_t size_bytes, std::string_view purpose) {
  void* const memory = ::mmap(nullptr, size_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  require(memory != MAP_FAILED, ErrorCode::out_of_memory, "{} needs up to {} MiB of memory{}", purpose,
          size_bytes >> 20, memory_limit_in_message());
  ::munmap(memory, size_bytes);
}

std::uint64_t n_killed_for_memory() { return read_number("/proc/vmstat", "oom_kill", 0); }

}  // namespace lockstep

#include "kernels/cpu/base/machine.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <fstream>
#include <istream>
#include <limits>
#include <optional>
#include <sstream>
#include <string_view>

#include "lockstep/error.h"
#include "lockstep/memory_limit.h"

namespace lockstep::cpu {
namespace {

/// The number of cores in the affinity mask of a process; 0: unknown. Supports masks of up to 8192 cores.
int core_count(pid_t process) {
  constexpr int kMaxCpus = 8192;
  cpu_set_t* const mask = CPU_ALLOC(kMaxCpus);
  const std::size_t size_bytes = CPU_ALLOC_SIZE(kMaxCpus);
  const int count = sched_getaffinity(process, size_bytes, mask) == 0 ? CPU_COUNT_S(size_bytes, mask) : 0;
  CPU_FREE(mask);
  return count;
}

struct ProcessInfo {
  std::string command;
  pid_t parent = 0;
};

/// /proc/PID/stat: "PID (COMMAND) STATE PARENT ...". The command may contain any character, so it ends at the last ")".
std::optional<ProcessInfo> process_info(pid_t process) {
  std::ifstream file("/proc/" + std::to_string(process) + "/stat");
  std::string line;
  if (!std::getline(file, line)) return std::nullopt;
  const std::size_t open = line.find('('), close = line.rfind(')');
  if (open == std::string::npos || close == std::string::npos) return std::nullopt;
  ProcessInfo info;
  info.command = line.substr(open + 1, close - open - 1);
  char state = 0;
  std::istringstream rest(line.substr(close + 1));
  rest >> state >> info.parent;
  return info;
}

/// The number of cores of the process that started the node's ranks, or all cores of the machine if there is no known
/// launcher.
int launcher_core_count() {
  constexpr std::array<std::string_view, 7> kLaunchers{"mpirun",     "mpiexec",         "orted",  "prted",
                                                       "slurmstepd", "hydra_pmi_proxy", "prterun"};
  pid_t process = getppid();
  while (process > 1) {
    const auto info = process_info(process);
    if (!info) break;
    if (std::find(kLaunchers.begin(), kLaunchers.end(), info->command) != kLaunchers.end()) {
      const int count = core_count(process);
      if (count > 0) return count;
      break;
    }
    process = info->parent;
  }
  return static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN));
}

}  // namespace

int threads_of_rank(int cores, int launcher_cores, int local_size) {
  const bool own = cores < launcher_cores;
  return std::max(1, own ? cores : cores / std::max(1, local_size));
}

int threads_of_this_rank(int local_size) {
  return threads_of_rank(std::max(1, core_count(0)), launcher_core_count(), local_size);
}

std::optional<std::size_t> reported_memory_bytes(const std::string& key, const std::string& root) {
  std::ifstream in(root + "/proc/meminfo");
  for (std::string line; std::getline(in, line);)
    if (line.starts_with(key)) return std::strtoull(line.c_str() + key.size(), nullptr, 10) * 1024;
  return std::nullopt;
}

std::size_t available_memory_bytes() {
  return std::min(reported_memory_bytes("MemAvailable:").value_or(std::numeric_limits<std::size_t>::max()),
                  memory_left_to_control_groups());
}

MaxIsa max_isa() {
  const char* value = std::getenv("LOCKSTEP_MAX_ISA");
  const std::string_view text = value ? value : "";
  if (text.empty()) return MaxIsa::all;
  if (text == "avx2") return MaxIsa::avx2;
  if (text == "avx512") return MaxIsa::avx512;
  require(text == "avx512_bf16", ErrorCode::not_supported,
          "LOCKSTEP_MAX_ISA must be avx2, avx512 or avx512_bf16, found \"{}\"", text);
  return MaxIsa::avx512_bf16;
}

std::string processor_name() {
  std::ifstream file("/proc/cpuinfo");
  return processor_name(file);
}

std::string processor_name(std::istream& cpuinfo) {
  // The "CPU implementer" and "CPU part" numbers (Arm's MIDR_EL1) of server processors.
  struct Part {
    std::string_view implementer, part, name;
  };
  constexpr std::array<Part, 8> kParts{{{"0x41", "0xd0c", "ARM Neoverse-N1"},
                                        {"0x41", "0xd40", "ARM Neoverse-V1"},
                                        {"0x41", "0xd49", "ARM Neoverse-N2"},
                                        {"0x41", "0xd4f", "ARM Neoverse-V2"},  // NVIDIA Grace
                                        {"0x41", "0xd84", "ARM Neoverse-V3"},
                                        {"0x41", "0xd8e", "ARM Neoverse-N3"},
                                        {"0x46", "0x001", "Fujitsu A64FX"},
                                        {"0x48", "0xd01", "HiSilicon TaiShan v110"}}};
  std::string implementer, part;
  for (std::string line; std::getline(cpuinfo, line);) {
    const std::size_t colon = line.find(':');
    if (colon == std::string::npos || colon + 2 >= line.size()) continue;
    const std::string value = line.substr(colon + 2);
    if (line.rfind("model name", 0) == 0) return value;
    if (line.rfind("CPU implementer", 0) == 0) implementer = value;
    if (line.rfind("CPU part", 0) == 0) part = value;
  }
  for (const Part& known : kParts)
    if (known.implementer == implementer && known.part == part) return std::string(known.name);
  return part.empty() ? "unknown processor" : "ARM processor " + implementer + ":" + part;
}

}  // namespace lockstep::cpu

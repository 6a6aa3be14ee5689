#include "base/process.h"

#include <sched.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <fstream>
#include <iterator>
#include <sstream>

#include "lockstep/error.h"

namespace lockstep {

namespace {

/// The value of a line such as "VmHWM:   1234 kB" of /proc/self/status, in bytes.
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

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr ? value : "";
}

void raise_limit_of_open_files() {
  constexpr rlim_t kNeeded = 64;    // MPI, HDF5 and the files of a run on a few ranks
  constexpr rlim_t kUseful = 1024;  // the usual limit; select() of other libraries cannot use more
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  if (limit.rlim_cur < kUseful) {
    limit.rlim_cur = std::min(limit.rlim_max, kUseful);
    ::setrlimit(RLIMIT_NOFILE, &limit);
  }
  require(limit.rlim_cur >= kNeeded, ErrorCode::system_call,
          "this process may open only {} files, and needs at least {}: raise the limit with `ulimit -n {}`",
          limit.rlim_cur, kNeeded, kUseful);
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

std::vector<int> usable_processors() {
  cpu_set_t set;
  CPU_ZERO(&set);
  std::vector<int> list;
  if (::sched_getaffinity(0, sizeof(set), &set) != 0) return list;
  for (int i = 0; i < CPU_SETSIZE; ++i)
    if (CPU_ISSET(i, &set)) list.push_back(i);
  return list;
}

std::vector<int> processors_in(const std::string& list) {
  std::vector<int> numbers;
  std::istringstream in(list);
  for (std::string range; std::getline(in, range, ',');) {
    int first = 0, last = 0;
    const int n_read = std::sscanf(range.c_str(), "%d-%d", &first, &last);
    if (n_read < 1 || first < 0 || (n_read == 2 && (last < first || last >= CPU_SETSIZE))) return {};
    for (int i = first; i <= (n_read == 2 ? last : first); ++i) numbers.push_back(i);
  }
  std::ranges::sort(numbers);
  return numbers;
}

std::vector<int> processors_near(std::string pci_bus, const std::string& folder) {
  if (pci_bus.empty()) return {};
  for (char& c : pci_bus) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));  // as in folders of sysfs
  std::ifstream in(folder + "/" + pci_bus + "/local_cpulist");
  return processors_in({std::istreambuf_iterator<char>(in), {}});
}

void stay_near(const std::string& pci_bus, int n_threads, const std::string& folder) {
  const std::vector<int> usable = usable_processors(), near = processors_near(pci_bus, folder);
  std::vector<int> both;
  std::ranges::set_intersection(usable, near, std::back_inserter(both));
  if (both.empty() || static_cast<int>(both.size()) < n_threads) return;
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int i : both) CPU_SET(i, &set);
  (void)::sched_setaffinity(0, sizeof(set), &set);  // it is only faster
}

int n_processors() { return static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN)); }

std::string host_name() {
  char name[256] = "";
  ::gethostname(name, sizeof name - 1);
  return name;
}

std::optional<ProcessFacts> process_facts(long pid) {
  std::ifstream in("/proc/" + std::to_string(pid) + "/stat");
  std::string text;
  std::getline(in, text);
  const auto name_end = text.rfind(')');  // a name may hold blanks and brackets
  if (name_end == std::string::npos) return std::nullopt;
  std::istringstream fields(text.substr(name_end + 1));
  std::string state, skipped;
  fields >> state;
  if (state == "Z" || state == "X") return std::nullopt;
  unsigned long long user = 0, system = 0, virtual_bytes = 0, resident_pages = 0;
  ProcessFacts facts;
  for (int field = 4; field < 14; ++field) fields >> skipped;
  fields >> user >> system;
  for (int field = 16; field < 22; ++field) fields >> skipped;
  fields >> facts.start_ticks >> virtual_bytes >> resident_pages;
  if (fields.fail()) return std::nullopt;
  const auto ticks_per_second = static_cast<double>(sysconf(_SC_CLK_TCK));
  timespec now{};
  ::clock_gettime(CLOCK_BOOTTIME, &now);
  facts.age_seconds = static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec) -
                      static_cast<double>(facts.start_ticks) / ticks_per_second;
  facts.cpu_seconds = static_cast<double>(user + system) / ticks_per_second;
  facts.resident_bytes = resident_pages * static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
  return facts;
}

}  // namespace lockstep

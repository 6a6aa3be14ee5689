#include "run/usage_log.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <sstream>

#include "base/clock.h"
#include "base/file.h"
#include "base/process.h"
#include "base/signals.h"
#include "base/standard_streams.h"
#include "lockstep/error.h"
#include "lockstep/log.h"

namespace lockstep::run {
namespace {

long mib(std::size_t size_bytes) { return std::lround(static_cast<double>(size_bytes) / (1 << 20)); }

/// Appends lines to a CSV file, and writes the header of a new one. Removes a line that a killed run or a full disk
/// left unfinished.
void append(const std::string& path, const std::string& header, const std::string& lines) {
  const Descriptor file = open_file(path, O_RDWR | O_CREAT | O_APPEND);
  const ::off_t size = ::lseek(file.get(), 0, SEEK_END);
  ::off_t whole = size;
  for (char last = 0; whole > 0; --whole) {
    const bool is_read = ::pread(file.get(), &last, 1, whole - 1) == 1;
    require(is_read, ErrorCode::system_call, "cannot read {}: {}", path, std::strerror(errno));
    if (last == '\n') break;
  }
  const bool is_cut = whole == size || ::ftruncate(file.get(), whole) == 0;
  require(is_cut, ErrorCode::system_call, "cannot cut {}: {}", path, std::strerror(errno));
  write_fully(file.get(), (whole == 0 ? header + "\n" : "") + lines, path);
}

}  // namespace

UsageLog::UsageLog(World& world, UsageLogOptions options)
    : options_(std::move(options)), is_leader_(world.rank() == 0), suffix_(world.host()) {
  const auto mine = process_facts(::getpid());
  const std::vector<std::string> all =
      world.all_gather(fmt::format("{} {} {} {} {}", world.node(), world.host(), ::getpid(),
                                   mine ? mine->start_ticks : 0, options_.pci_bus.empty() ? "-" : options_.pci_bus));
  std::vector<std::string> pci_buses;
  bool is_host_of_others = false;
  for (int rank = 0; rank < world.size(); ++rank) {
    std::istringstream in(all[static_cast<std::size_t>(rank)]);
    Process process{.rank = rank};
    int node = 0;
    std::string host, pci_bus;
    in >> node >> host >> process.pid >> process.start_ticks >> pci_bus;
    is_host_of_others = is_host_of_others || (node != world.node() && host == world.host());
    if (node != world.node()) continue;
    processes_.push_back(process);
    if (pci_bus != "-") pci_buses.push_back(pci_bus);
  }
  if (world.local_rank() != 0) return;
  if (is_host_of_others) suffix_ += fmt::format("_node{}", world.node());  // containers may all have the same name
  suffix_ += ".csv";
  find_gpus(std::move(pci_buses));
  const SignalsBlocked blocked;
  thread_ = std::thread([this] { run(); });
}

UsageLog::~UsageLog() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    is_over_ = true;
  }
  changed_.notify_one();
  thread_.join();
}

/// The GPUs that the driver reports. If the launcher shows each rank only its own GPU, the driver reports only that
/// one.
void UsageLog::find_gpus(std::vector<std::string> pci_buses) {
  std::ranges::sort(pci_buses);
  pci_buses.erase(std::unique(pci_buses.begin(), pci_buses.end()), pci_buses.end());
  std::string missing;
  for (const std::string& pci_bus : pci_buses) {
    if (options_.usage_of(pci_bus).memory_bytes)
      gpus_.push_back(pci_bus);
    else
      missing += (missing.empty() ? "" : ", ") + pci_bus;
  }
  if (!missing.empty())
    warn(
        fmt::format("the driver (NVML) does not report the GPU at {} to this node's first rank, so it is missing from "
                    "gpu_memory_log_{}: start ranks so that each sees all GPUs of its node",
                    missing, suffix_));
}

void UsageLog::warn(const std::string& what) const {
  const std::string line = "log.usage_seconds: " + what;
  if (is_leader_)
    log::warning("{}", line);
  else  // the log belongs to rank 0, and this concerns another node
    write_to_standard_error(fmt::format("lockstep: warning: {}\n", line));
}

void UsageLog::run() {
  try {
    std::filesystem::create_directories(options_.directory);
    std::unique_lock lock(mutex_);
    const auto interval = std::chrono::duration<double>(options_.interval_seconds);
    do {
      const double now = unix_seconds();
      log_gpus(now);
      log_processes(now);
    } while (!changed_.wait_for(lock, interval, [this] { return is_over_; }));
  } catch (const std::exception& e) {  // most likely a full disk
    warn(fmt::format("the log of memory use has ended: {}", e.what()));
  }
}

void UsageLog::log_gpus(double time_unix) {
  std::string lines;
  for (std::size_t i = 0; i < gpus_.size(); ++i) {
    const DeviceUsage usage = options_.usage_of(gpus_[i]);
    if (!usage.memory_bytes) continue;
    lines += fmt::format("{:.3f},{},{},{},{}\n", time_unix, usage.index.value_or(static_cast<int>(i)),
                         mib(*usage.memory_bytes),
                         usage.memory_total_bytes ? fmt::to_string(mib(*usage.memory_total_bytes)) : "",
                         usage.utilisation ? fmt::format("{:.0f}", 100 * *usage.utilisation) : "");
  }
  if (lines.empty()) return;
  append(options_.directory + "/gpu_memory_log_" + suffix_,
         "time_unix,gpu,memory_used_mib,memory_total_mib,utilisation_percent", lines);
}

void UsageLog::log_processes(double time_unix) {
  std::string lines;
  for (Process& process : processes_) {
    const auto now = process_facts(process.pid);
    if (!now || now->start_ticks != process.start_ticks) continue;
    const double seconds = now->age_seconds - process.age_seconds;
    const double cpu = seconds > 0 ? 100 * (now->cpu_seconds - process.cpu_seconds) / seconds : 0;
    process.age_seconds = now->age_seconds;
    process.cpu_seconds = now->cpu_seconds;
    lines +=
        fmt::format("{:.3f},{},{},{:.1f},{}\n", time_unix, process.rank, process.pid, cpu, mib(now->resident_bytes));
  }
  if (!lines.empty())
    append(options_.directory + "/process_log_" + suffix_, "time_unix,rank,pid,cpu_percent,rss_mib", lines);
}

}  // namespace lockstep::run

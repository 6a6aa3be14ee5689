// Logs the resources that the GPUs and processes of each node use during the run: CSV files in RUN/usage, with one line
// per interval.
//
//   gpu_memory_log_HOST.csv   time_unix,gpu,memory_used_mib,memory_total_mib,utilisation_percent
//   process_log_HOST.csv      time_unix,rank,pid,cpu_percent,rss_mib
//
// gpu: the number that nvidia-smi shows; the figures are those of all users of the GPU together. cpu_percent: 100 is
// one processor; since the previous line, or in the first line since the process began. Unknown figures are empty.
// `lockstep report memory` reads the files. A thread of each node's first rank writes them for all ranks of the node,
// and makes no MPI calls. If a file cannot be written, the log ends and the run continues.
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/backend.h"
#include "lockstep/communicator.h"

namespace lockstep::run {

struct UsageLogOptions {
  std::string directory;  // "RUN/usage"
  double interval_seconds = 5;
  std::string pci_bus;  // of this rank's GPU; empty: the rank computes on the CPU
  /// Returns the usage of a GPU of this node. May be called from any thread.
  std::function<DeviceUsage(const std::string& pci_bus)> usage_of;
};

class UsageLog {
 public:
  /// Collective.
  UsageLog(World& world, UsageLogOptions options);
  ~UsageLog();
  UsageLog(const UsageLog&) = delete;
  UsageLog& operator=(const UsageLog&) = delete;

 private:
  struct Process {
    int rank = 0;
    long pid = 0;
    unsigned long long start_ticks = 0;
    double cpu_seconds = 0, age_seconds = 0;  // at the previous line
  };

  void find_gpus(std::vector<std::string> pci_buses);
  void run();
  void log_gpus(double time_unix);
  void log_processes(double time_unix);
  void warn(const std::string& what) const;

  UsageLogOptions options_;
  bool is_leader_;
  std::string suffix_;  // "HOST.csv"
  std::vector<Process> processes_;
  std::vector<std::string> gpus_;  // PCI addresses
  std::mutex mutex_;
  std::condition_variable changed_;
  bool is_over_ = false;
  std::thread thread_;
};

}  // namespace lockstep::run

#include "doctor/host.h"

#include <dirent.h>
#include <fmt/format.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <sstream>
#include <thread>

#include "base/clock.h"
#include "base/process.h"
#include "doctor/thresholds.h"

namespace lockstep::doctor {
namespace {

constexpr std::chrono::milliseconds kIdle{500};
constexpr double kLeastCores = 0.05;  // of a process that is listed: smaller ones are ignored
constexpr std::size_t kMostProcesses = 5;

std::string text_of(const std::string& path) {
  std::ifstream in(path);
  return {std::istreambuf_iterator<char>(in), {}};
}

struct Seen {
  unsigned long long start_ticks = 0;
  double cpu_seconds = 0;
};

std::map<long, Seen> processes() {
  std::map<long, Seen> seen;
  const std::unique_ptr<DIR, int (*)(DIR*)> folder(::opendir("/proc"), ::closedir);
  if (!folder) return seen;
  while (const dirent* entry = ::readdir(folder.get())) {
    const long pid = std::strtol(entry->d_name, nullptr, 10);
    if (pid <= 0) continue;
    if (const auto facts = process_facts(pid)) seen[pid] = {facts->start_ticks, facts->cpu_seconds};
  }
  return seen;
}

/// The name of a process, such as "stress", and the processor on which it last ran.
OtherProcess describe(long pid, double cores) {
  const std::string text = text_of(fmt::format("/proc/{}/stat", pid));
  const std::size_t begin = text.find('('), end = text.rfind(')');
  OtherProcess process{.pid = pid, .cores = cores};
  if (begin == std::string::npos || end == std::string::npos) return process;
  process.name = text.substr(begin + 1, end - begin - 1);
  std::istringstream fields(text.substr(end + 1));
  std::string skipped;
  constexpr int kFirst = 3, kProcessor = 39;  // numbers of fields, proc(5)
  for (int field = kFirst; field < kProcessor; ++field) fields >> skipped;
  fields >> process.processor;
  return process;
}

std::vector<OtherProcess> busy_processes(const std::set<long>& ranks) {
  const std::map<long, Seen> before = processes();
  const Clock::time_point begin = Clock::now();
  std::this_thread::sleep_for(kIdle);
  const std::map<long, Seen> after = processes();
  const double seconds = seconds_since(begin);
  std::vector<OtherProcess> busy;
  for (const auto& [pid, now] : after) {
    const auto then = before.find(pid);
    if (then == before.end() || then->second.start_ticks != now.start_ticks || ranks.contains(pid)) continue;
    const double cores = (now.cpu_seconds - then->second.cpu_seconds) / seconds;
    if (cores >= kLeastCores) busy.push_back(describe(pid, cores));
  }
  std::ranges::sort(busy, std::greater(), &OtherProcess::cores);
  return busy;
}

/// The number of threads that need each processor of a node, if each rank spreads its threads evenly.
std::map<int, double> demand(const std::vector<const HostFacts*>& ranks) {
  std::map<int, double> wanted;
  for (const HostFacts* rank : ranks)
    for (const int processor : rank->processors)
      wanted[processor] += rank->n_threads / static_cast<double>(rank->processors.size());
  return wanted;
}

void check_binding(const std::string& host, const std::vector<const HostFacts*>& ranks, std::vector<Check>& out) {
  constexpr double kRounding = 1.01;
  const std::map<int, double> wanted = demand(ranks);
  double most = 0;
  int n_threads = 0, least = ranks[0]->n_processors;
  for (const auto& [processor, threads] : wanted) most = std::max(most, threads);
  for (const HostFacts* rank : ranks) {
    n_threads += rank->n_threads;
    least = std::min(least, static_cast<int>(rank->processors.size()));
  }
  Check check{
      .name = "CPU binding",
      .scope = host,
      .value = fmt::format("{} threads on {} of {} processors", n_threads, wanted.size(), ranks[0]->n_processors),
      .expected = "one thread per processor"};
  if (most > kRounding) {
    check.status = Status::fail;
    check.value += fmt::format(", up to {:.2g} on one", most);
    check.remedy =
        "Ranks share processors: start fewer ranks per node, or bind each to processors of its own (srun "
        "--cpus-per-task=N --cpu-bind=cores, or mpirun --map-by slot:PE=N).";
  } else if (least == 1 && ranks[0]->n_processors > static_cast<int>(ranks.size())) {
    check.status = Status::warn;
    check.remedy =
        "A rank may use one processor only, which its helper threads share with the step: give each more (srun "
        "--cpus-per-task=N, or mpirun --bind-to none).";
  }
  add(out, std::move(check));
}

/// No check for a rank without a GPU, or if the system does not report where the GPU is attached.
void check_affinity(const Place& place, const HostFacts& rank, std::vector<Check>& out) {
  if (rank.near_device.empty()) return;
  const auto is_near = [&](int processor) { return std::ranges::binary_search(rank.near_device, processor); };
  const auto n_near = std::ranges::count_if(rank.processors, is_near);
  add(out, {.name = "GPU affinity",
            .scope = rank_name(place),
            .status = status_of(false, n_near == 0),
            .value = fmt::format("{} of {} processors near its GPU", n_near, rank.processors.size()),
            .expected = "at least one",
            .remedy = fmt::format(
                "The rank runs on another socket than that of its GPU (processors {} to {}), so that copies and "
                "messages cross the link between the sockets: let the launcher choose near ones (srun "
                "--gpus-per-task=1 --gpu-bind=closest, or mpirun --map-by numa --bind-to numa).",
                rank.near_device.front(), rank.near_device.back())});
}

void check_load(const std::string& host, const std::vector<const HostFacts*>& ranks, std::vector<Check>& out) {
  const std::map<int, double> wanted = demand(ranks);
  double busy = 0;
  std::string names;
  std::size_t n_named = 0;
  for (const OtherProcess& process : ranks[0]->others) {
    if (!wanted.contains(process.processor)) continue;  // it does not run where ranks do
    busy += process.cores;
    if (n_named++ < kMostProcesses)
      names +=
          fmt::format("{}{} (process {}) {:.2f}", names.empty() ? "" : ", ", process.name, process.pid, process.cores);
  }
  double n_threads = 0;
  for (const auto& [processor, threads] : wanted) n_threads += threads;
  const bool is_busy = busy >= kOtherLoadWarns;
  const bool takes_from_ranks = busy + n_threads > static_cast<double>(wanted.size());
  add(out, {.name = "other load",
            .scope = host,
            .status = status_of(is_busy && takes_from_ranks, is_busy),
            .value = fmt::format("{:.2f} cores{}", busy, names.empty() ? "" : ": " + names),
            .expected = fmt::format("less than {} cores", kOtherLoadWarns),
            .remedy = "Other processes use processors of the ranks: end them, or ask Slurm for the whole node "
                      "(--exclusive).",
            .number = names.empty() ? std::optional(busy) : std::nullopt,
            .unit = names.empty() ? "cores" : ""});
}

void check_huge_pages(const std::string& host, const std::string& mode, std::vector<Check>& out) {
  const bool is_known = !mode.empty();
  add(out, {.name = "huge pages",
            .scope = host,
            .status = is_known ? status_of(false, mode == "never") : Status::unknown,
            .value = is_known ? mode : "not reported",
            .expected = "always or madvise",
            .remedy = is_known ? "Arrays of gigabytes are then slower to access: ask the operators for `echo madvise "
                                 "> /sys/kernel/mm/transparent_hugepage/enabled`."
                               : "This system does not report whether the kernel uses transparent huge pages."});
}

}  // namespace

std::string selected_word(std::string_view text) {
  const std::size_t begin = text.find('['), end = text.find(']');
  return begin < end && end != std::string_view::npos ? std::string(text.substr(begin + 1, end - begin - 1)) : "";
}

HostFacts measure_host(World& world, const std::string& pci_bus) {
  HostFacts facts{.processors = usable_processors(),
                  .near_device = processors_near(pci_bus),
                  .n_processors = n_processors(),
                  .huge_pages = selected_word(text_of("/sys/kernel/mm/transparent_hugepage/enabled"))};
  facts.n_threads = std::max(1, static_cast<int>(facts.processors.size()) / world.local_size());
  std::set<long> ranks;  // of this node
  for (const std::string& text : world.all_gather(fmt::format("{} {}", world.node(), ::getpid()))) {
    std::istringstream in(text);
    int node = 0;
    long pid = 0;
    in >> node >> pid;
    if (node == world.node()) ranks.insert(pid);
  }
  if (world.local_rank() == 0) facts.others = busy_processes(ranks);
  world.barrier();
  return facts;
}

std::vector<Check> check_hosts(const std::vector<Place>& places, const std::vector<HostFacts>& hosts) {
  std::map<int, std::vector<const HostFacts*>> nodes;
  std::map<int, std::string> names;
  for (std::size_t r = 0; r < hosts.size(); ++r) {
    nodes[places[r].node].push_back(&hosts[r]);
    names[places[r].node] = places[r].host;
  }
  std::vector<Check> out;
  for (const auto& [node, ranks] : nodes) check_binding(names[node], ranks, out);
  for (std::size_t r = 0; r < hosts.size(); ++r) check_affinity(places[r], hosts[r], out);
  for (const auto& [node, ranks] : nodes) check_load(names[node], ranks, out);
  for (const auto& [node, ranks] : nodes) check_huge_pages(names[node], ranks[0]->huge_pages, out);
  return out;
}

}  // namespace lockstep::doctor

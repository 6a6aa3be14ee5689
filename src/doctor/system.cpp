#include "doctor/system.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gnu/libc-version.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <sys/utsname.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include "base/numbers.h"
#include "base/version.h"
#include "comm/world.h"
#include "doctor/thresholds.h"
#include "run/metrics.h"

namespace lockstep::doctor {
namespace {

constexpr const char* kVariables[] = {"SLURM_JOB_ID",        "SLURM_STEP_NUM_TASKS", "SLURM_STEP_ID", "SLURM_NTASKS",
                                      "SLURM_NNODES",        "SLURM_MPI_TYPE",       "PMIX_RANK",     "PMI_RANK",
                                      "OMPI_COMM_WORLD_SIZE"};

double limit_of(int resource) {
  rlimit limit{};
  if (::getrlimit(static_cast<__rlimit_resource>(resource), &limit) != 0) return 0;
  return limit.rlim_cur == RLIM_INFINITY ? -1 : static_cast<double>(limit.rlim_cur);
}

/// An entry of the versions or of the environment.
std::string text_in(const std::map<std::string, std::string>& texts, const std::string& name,
                    const char* if_missing = "") {
  const auto found = texts.find(name);
  return found == texts.end() ? if_missing : found->second;
}

/// Each version that differs between rank 0 and some rank is a check of its own. All others together are one check.
void check_versions(const std::vector<Place>& places, const std::vector<SystemFacts>& systems,
                    std::vector<Check>& out) {
  std::map<std::string, std::string> all = systems[0].versions;
  for (const SystemFacts& system : systems) all.insert(system.versions.begin(), system.versions.end());
  const auto value = [&](std::size_t rank, const std::string& name) {
    return text_in(systems[rank].versions, name, "missing");
  };
  std::size_t n_equal = 0;
  for (const auto& [name, unused] : all) {
    std::size_t other = 0;
    while (other < systems.size() && value(other, name) == value(0, name)) ++other;
    if (other == systems.size()) {
      ++n_equal;
      continue;
    }
    const bool is_kernel = name == "kernel";  // a different kernel does not change results
    out.push_back(
        {.name = "versions",
         .scope = rank_name(places[other]),
         .status = is_kernel ? Status::warn : Status::fail,
         .value = fmt::format("{} {}", name, value(other, name)),
         .expected = fmt::format("{}, as {} has", value(0, name), rank_name(places[0])),
         .remedy = fmt::format("Start the same program on all nodes, from a file system that they share, with "
                               "the same modules; leave out nodes that differ (sbatch --exclude={}).",
                               places[other].host)});
  }
  const std::string n_of_all = fmt::format("{} of {} equal", n_equal, all.size());
  out.push_back({.name = "versions", .scope = "all ranks", .value = n_of_all});
}

Check check_launch(const std::vector<Place>& places, const std::vector<SystemFacts>& systems) {
  const auto& environment = systems[0].environment;
  const bool is_mpirun = environment.contains("OMPI_COMM_WORLD_SIZE");
  const bool has_pmix = environment.contains("PMIX_RANK"), has_pmi = environment.contains("PMI_RANK");
  const bool is_slurm = environment.contains("SLURM_JOB_ID");
  const auto n_nodes = static_cast<int>(std::ranges::count(places, 0, &Place::local_rank));
  const auto n_ranks = static_cast<int>(places.size());
  Check check{.name = "launch",
              .scope = "all ranks",
              .value = fmt::format("{} on {}, {}{}, {}", counted(n_ranks, "rank"), counted(n_nodes, "node"),
                                   is_mpirun             ? "mpirun"
                                   : has_pmix || has_pmi ? "srun"
                                                         : "no launcher",
                                   has_pmix  ? " with PMIx"
                                   : has_pmi ? " with PMI"
                                             : "",
                                   text_in(systems[0].versions, "MPI").substr(0, 40))};
  for (std::size_t r = 1; r < systems.size(); ++r) {
    const auto job = [&](std::size_t rank) { return text_in(systems[rank].environment, "SLURM_JOB_ID"); };
    if (job(r) == job(0)) continue;
    check.status = Status::fail;
    check.expected = fmt::format("one Slurm job; rank 0 is in '{}', rank {} in '{}'", job(0), r, job(r));
    check.remedy = "Start all ranks with one srun or mpirun inside one allocation.";
    return check;
  }
  if (!is_slurm) return check;
  const auto number = [&](const char* name) { return std::atoi(text_in(environment, name).c_str()); };
  const int nodes = number("SLURM_NNODES"), tasks = number("SLURM_NTASKS");
  if (nodes > n_nodes || tasks > n_ranks) {
    check.status = Status::warn;
    check.expected = fmt::format("{} on {}, which Slurm has allocated", counted(tasks, "rank"), counted(nodes, "node"));
    check.remedy =
        "Part of the allocation is not used: start as many ranks as the job has tasks (srun without -n and -N, or "
        "mpirun without -n).";
  }
  return check;
}

/// "13.0" as 1300; 0: none.
int cuda_number(const std::string& version) {
  const std::size_t dot = version.find('.');
  if (dot == std::string::npos) return 0;
  return 100 * std::atoi(version.c_str()) + std::atoi(version.c_str() + dot + 1);
}

void check_cuda(const Place& place, const SystemFacts& system, std::vector<Check>& out) {
  if (!system.computes_on_gpu) return;
  Check check{.name = "CUDA",
              .scope = rank_name(place),
              .value = fmt::format("driver for CUDA {}, built with {}", system.driver_cuda, system.built_with_cuda),
              .expected = "a driver that is not older"};
  // A driver runs programs that were built for any minor version of its major version ("minor version compatibility").
  if (cuda_number(system.driver_cuda) / 100 < cuda_number(system.built_with_cuda) / 100) {
    check.status = Status::fail;
    check.remedy = "The driver is too old: ask the operators for a newer one, or build with an older CUDA toolkit.";
  }
  if (!system.missing_libraries.empty()) {
    check.status = Status::fail;
    check.value = fmt::format("{}", fmt::join(system.missing_libraries, "; "));
    check.remedy = "Load the module that provides the library, or add its folder to LD_LIBRARY_PATH.";
  }
  out.push_back(std::move(check));
}

void check_limits(const Place& place, const SystemFacts& system, std::vector<Check>& out) {
  const auto text = [](double limit, double unit, const char* name) {
    return limit < 0 ? std::string("unlimited") : fmt::format("{}{}", three_digits(limit / unit), name);
  };
  const auto is_below = [](double limit, double least) { return limit >= 0 && limit < least; };
  add(out, {.name = "open files",
            .scope = place.host,
            .status = status_of(is_below(system.open_files, kOpenFilesFails)),
            .value = text(system.open_files, 1, ""),
            .expected = fmt::format("at least {:g}", kOpenFilesFails),
            .remedy = "Raise the limit: `ulimit -n 4096` before srun, or ask the operators."});
  add(out, {.name = "locked memory",
            .scope = place.host,
            .status = status_of(system.has_rdma && is_below(system.locked_memory_bytes, kLockedMemoryFails)),
            .value = text(system.locked_memory_bytes, 1e6, " MB"),
            .expected = system.has_rdma ? fmt::format("at least {:g} MB", kLockedMemoryFails / 1e6) : "",
            .remedy = "InfiniBand needs locked memory: `ulimit -l unlimited` before srun, or ask the operators for "
                      "LimitMEMLOCK=infinity in the service of slurmd."});
  if (!system.shm_free_bytes) return;
  const double of_rank = *system.shm_free_bytes / place.local_size;
  add(out, {.name = "/dev/shm",
            .scope = place.host,
            .status = status_of(of_rank < kSharedMemoryFails, of_rank < kSharedMemoryWarns),
            .value = fmt::format("{:.3g} GB free", *system.shm_free_bytes / 1e9),
            .expected = fmt::format("at least {:g} GB per rank", kSharedMemoryWarns / 1e9),
            .remedy = "The ranks of a node share gradients there: remove old files in /dev/shm, start the container "
                      "with a larger one (--shm-size), or set comm.backend=mpi."});
}

}  // namespace

SystemFacts measure_system(bool computes_on_gpu) {
  SystemFacts facts{.computes_on_gpu = computes_on_gpu};
  const auto versions = nlohmann::json::parse(run::versions_json());
  facts.versions["lockstep"] = fmt::format("{} ({})", version(), commit());
  facts.versions["compiler"] = compiler();
  for (const auto& [name, text] : versions["libraries"].items()) facts.versions[name] = text.get<std::string>();
  facts.versions["C library"] = ::gnu_get_libc_version();
  utsname kernel{};
  if (::uname(&kernel) == 0) facts.versions["kernel"] = kernel.release;
  for (const char* name : kVariables)
    if (const char* value = std::getenv(name)) facts.environment[name] = value;

  const GpuReport gpus = gpu_report();
  facts.gpu_problem = gpus.problem;
  facts.driver_cuda = gpus.driver_cuda;
  facts.built_with_cuda = gpus.built_with_cuda;
  if (!gpus.driver.empty()) facts.versions["NVIDIA driver"] = gpus.driver;
  if (computes_on_gpu) {
    for (const GpuReport::Library& library : gpus.libraries) {
      if (!library.version.empty()) facts.versions[library.name] = library.version;
      if (library.version.empty() && library.is_needed)
        facts.missing_libraries.push_back(fmt::format("{}: {}", library.name, library.problem));
    }
    facts.versions["NCCL"] = comm::describe_nccl();
    facts.has_nccl = facts.versions["NCCL"].starts_with("NCCL ");
  }
  std::error_code error;
  facts.has_rdma = !std::filesystem::is_empty("/sys/class/infiniband", error) && !error;
  facts.open_files = limit_of(RLIMIT_NOFILE);
  facts.locked_memory_bytes = limit_of(RLIMIT_MEMLOCK);
  struct statvfs shm {};
  if (::statvfs("/dev/shm", &shm) == 0)
    facts.shm_free_bytes = static_cast<double>(shm.f_bavail) * static_cast<double>(shm.f_frsize);
  return facts;
}

std::vector<Check> check_systems(const std::vector<Place>& places, const std::vector<SystemFacts>& systems) {
  std::vector<Check> out;
  check_versions(places, systems, out);
  out.push_back(check_launch(places, systems));
  for (std::size_t r = 0; r < systems.size(); ++r) check_cuda(places[r], systems[r], out);
  if (systems.size() > 1 && systems[0].computes_on_gpu && !systems[0].has_nccl)
    out.push_back(
        {.name = "NCCL",
         .scope = "all ranks",
         .status = Status::fail,
         .value = systems[0].versions.at("NCCL"),
         .expected = "NCCL 2.20 or newer",
         .remedy = "Load the module of NCCL or set NCCL_HOME; comm.backend=staged trains without it, slowly."});
  for (std::size_t r = 0; r < systems.size(); ++r)
    if (places[r].local_rank == 0) check_limits(places[r], systems[r], out);
  return out;
}

}  // namespace lockstep::doctor

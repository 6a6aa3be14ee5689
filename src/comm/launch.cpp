#include "comm/launch.h"

#include <algorithm>
#include <cstdlib>

#include "lockstep/error.h"

namespace lockstep::comm {
namespace {

bool is_set(const char* name) { return std::getenv(name) != nullptr; }

int number_of(const char* name) {
  const char* text = std::getenv(name);
  return text == nullptr ? 0 : std::atoi(text);
}

/// The number of tasks of the Slurm step that this process belongs to; 0 outside a step. Batch scripts and shells of
/// salloc have the job's SLURM_NTASKS but no step: a program that they start without srun is a single process.
int slurm_step_tasks() {
  if (!is_set("SLURM_STEP_ID") || !is_set("SLURM_PROCID")) return 0;
  const int tasks = number_of("SLURM_STEP_NUM_TASKS");
  return tasks > 0 ? tasks : number_of("SLURM_NTASKS");
}

}  // namespace

Launch inspect_launch() {
  const int step_tasks = slurm_step_tasks();
  Launch launch;
  if (is_set("OMPI_COMM_WORLD_SIZE")) {
    // Checked before Slurm's variables: mpirun starts its daemons with srun, and their ranks then inherit the variables
    // of a step that is not their own.
    launch.launcher = "mpirun";
    launch.expected_size = number_of("OMPI_COMM_WORLD_SIZE");
  } else if (is_set("PMIX_RANK") || is_set("PMIX_NAMESPACE")) {
    launch.launcher = step_tasks > 0 ? "srun" : "the launcher";
    launch.expected_size = step_tasks;
  } else if (is_set("PMI_RANK") || is_set("PMI_SIZE") || is_set("PMI_FD")) {
    launch.launcher = step_tasks > 0 ? "srun" : "the launcher";
    launch.expected_size = number_of("PMI_SIZE") > 0 ? number_of("PMI_SIZE") : step_tasks;
  } else {
    require(step_tasks <= 1, ErrorCode::comm_launch,
            "srun started {} tasks without a common MPI world (neither PMIX_RANK nor PMI_RANK is set). Use "
            "`srun --mpi=pmix lockstep ...`, or `mpirun lockstep ...` inside the allocation",
            step_tasks);
    return launch;
  }
  launch.alone = launch.expected_size == 1;
  return launch;
}

void require_one_process(const std::string& command) {
  // In the order of inspect_launch(): processes under mpirun may inherit the variables of a Slurm step.
  int n = std::max(slurm_step_tasks(), number_of("PMIX_RANK") + 1);
  if (is_set("PMI_SIZE")) n = number_of("PMI_SIZE");
  if (is_set("OMPI_COMM_WORLD_SIZE")) n = number_of("OMPI_COMM_WORLD_SIZE");
  require(n <= 1, ErrorCode::usage,
          "`lockstep {}` is a command of one process, but {} were started, which would write the same files: start it "
          "without mpirun or srun, or with -n 1; only train, evaluate, generate and doctor run on several ranks",
          command, n);
}

void check_world_size(const Launch& launch, int size) {
  require(
      launch.expected_size == 0 || launch.expected_size == size, ErrorCode::comm_launch,
      "{} started {} ranks, but the MPI library that Lockstep was built with reports a world of {}, so the launcher "
      "belongs to a different MPI. Use the mpirun of the MPI that `lockstep --version` reports, or `srun --mpi=pmix` "
      "with an MPI library that supports PMIx",
      launch.launcher, launch.expected_size, size);
}

void check_builds_agree(World& world, const std::string& mine) {
  const std::vector<std::string> builds = world.all_gather(mine);
  const auto other = std::find_if(builds.begin(), builds.end(), [&](const auto& build) { return build != builds[0]; });
  if (other == builds.end()) return;  // all ranks see the same builds and return together
  const std::vector<std::string> hosts = world.all_gather(world.host());
  const auto rank = static_cast<std::size_t>(other - builds.begin());
  fail(ErrorCode::nodes_differ, "rank {} on {} runs lockstep {}, but rank 0 on {} runs lockstep {}", rank, hosts[rank],
       *other, hosts[0], builds[0]);
}

}  // namespace lockstep::comm

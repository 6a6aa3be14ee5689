// What happens when a rank is lost, or the launch is wrong: child programs (this one, in the role --lost-rank) are
// started and their words and exit statuses read.
// sanitizers: no
#include <gtest/gtest.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "comm/reducer.h"
#include "comm/world.h"
#include "lockstep/error.h"
#include "lockstep/log.h"
#include "test/comm/children.h"
#include "test/reference/backend.h"

namespace lockstep::comm {
namespace {

// All-reduces of a killed rank's peers: an event cannot throw, so the communication thread ends the process.
TEST(LostRank, KilledBetweenSums) {
  const Outcome o = run_ranks_left_alone(3, "", "--lost-rank killed-in-sums");
  EXPECT_TRUE(says(o, "rank 1 on ")) << o.text;
  EXPECT_TRUE(says(o, "has died")) << o.text;
  EXPECT_TRUE(says(o, "'bucket 4 of 9'")) << o.text;
  EXPECT_TRUE(says(o, "status 1 of rank")) << o.text;
  EXPECT_LT(o.seconds, 20) << o.text;
}

// World calls throw Error, and main says it.
TEST(LostRank, KilledBeforeABarrier) {
  const Outcome o = run_ranks_left_alone(3, "", "--lost-rank killed-before-barrier");
  EXPECT_TRUE(says(o, "caught comm_rank_died: rank 1 on ")) << o.text;
  EXPECT_TRUE(says(o, "'barrier'")) << o.text;
  EXPECT_TRUE(says(o, "status 1 of rank")) << o.text;
  EXPECT_LT(o.seconds, 20) << o.text;
}

TEST(LostRank, StoppedRankIsNamedAfterTheLimit) {
  const Outcome o = run_ranks_left_alone(2, "WATCHDOG_SECONDS=4", "--lost-rank stopped");
  EXPECT_TRUE(says(o, "rank 0 on ")) << o.text;
  EXPECT_TRUE(says(o, "for rank 1 on ")) << o.text;
  EXPECT_TRUE(says(o, "has not responded for")) << o.text;
  EXPECT_TRUE(says(o, "status 1 of rank")) << o.text;
  EXPECT_LT(o.seconds, 30) << o.text;
}

TEST(LostRank, RankThatGoesElsewhereIsNamedWithItsLastCollective) {
  const Outcome o = run_ranks_left_alone(2, "WATCHDOG_SECONDS=2", "--lost-rank elsewhere");
  EXPECT_TRUE(says(o, "in 'bucket 2 of 9'")) << o.text;
  EXPECT_TRUE(says(o, "for rank 1 on ")) << o.text;
  EXPECT_TRUE(says(o, "its last was 'bucket 1 of 9', collective 1")) << o.text;
  EXPECT_TRUE(says(o, "status 1 of rank")) << o.text;
  EXPECT_LT(o.seconds, 20) << o.text;
}

// Two pretended nodes: rank 0 learns by control messages that it is rank 3 of the other node who is missing.
TEST(LostRank, MissingRankOfAnotherNodeIsNamed) {
  const Outcome o =
      run_ranks_left_alone(4, "LOCKSTEP_RANKS_PER_NODE=2 WATCHDOG_SECONDS=3", "--lost-rank elsewhere-last");
  EXPECT_TRUE(says(o, "for rank 3 on ")) << o.text;
  EXPECT_TRUE(says(o, "its last was 'bucket 1 of 9', collective 1")) << o.text;
  EXPECT_TRUE(says(o, "status 1 of rank")) << o.text;
  EXPECT_LT(o.seconds, 20) << o.text;
}

// One rank returns from main's work while the others go on: not mistaken for their collective.
TEST(LostRank, LeavingEarlyIsFoundOut) {
  const Outcome o = run_ranks_left_alone(3, "", "--lost-rank leaves-early");
  EXPECT_TRUE(says(o, "is in 'end of the run'")) << o.text;
  EXPECT_TRUE(says(o, "the ranks no longer make the same calls")) << o.text;
  EXPECT_TRUE(says(o, "status 1 of rank")) << o.text;
  EXPECT_LT(o.seconds, 20) << o.text;
}

// An exception passes through a step with sums in flight, towards main: its message must come out.
TEST(LostRank, ExceptionWithSumsInFlight) {
  for (const char* environment : {"", "LOCKSTEP_RANKS_PER_NODE=2"}) {
    const Outcome o = run_ranks_left_alone(3, environment, "--lost-rank throws");
    EXPECT_TRUE(says(o, "caught internal: thrown in a step")) << o.text;
    EXPECT_FALSE(says(o, "status 139")) << o.text;
    EXPECT_TRUE(says(o, "status 1 of rank")) << o.text;
    EXPECT_LT(o.seconds, 20) << o.text;
  }
}

// As it is on a cluster: mpirun ends the others by itself, and says so.
TEST(LostRank, KilledUnderAnOrdinaryMpirun) {
  const Outcome o = run_ranks(3, "", self() + " --lost-rank killed-in-sums");
  EXPECT_NE(o.exit_status, 0) << o.text;
  EXPECT_TRUE(says(o, "rank 1 on ")) << o.text;
  EXPECT_TRUE(says(o, "has died")) << o.text;
  EXPECT_LT(o.seconds, 20) << o.text;
}

TEST(LostRank, AbortEndsAllRanksWithItsStatus) {
  const Outcome o = run_ranks(3, "", self() + " --lost-rank abort");
  EXPECT_EQ(o.exit_status, 3) << o.text;
  EXPECT_LT(o.seconds, 10) << o.text;
}

/// The environment of a process that nobody launched, and then these variables.
std::string clean_environment(const std::string& variables) {
  std::string out = "env";
  for (const char* name : {"SLURM_STEP_ID", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_STEP_NUM_TASKS",
                           "OMPI_COMM_WORLD_SIZE", "PMIX_RANK", "PMIX_NAMESPACE", "PMI_RANK", "PMI_SIZE", "PMI_FD"}) {
    out += std::string(" -u ") + name;
  }
  return out + " " + variables + " " + self() + " --lost-rank start";
}

TEST(Launch, SlurmStepWithoutPmiIsRefused) {
  const Outcome o = run_command(clean_environment("SLURM_STEP_ID=0 SLURM_PROCID=1 SLURM_STEP_NUM_TASKS=4"));
  EXPECT_TRUE(says(o, "caught comm_launch: srun started 4 tasks")) << o.text;
  EXPECT_TRUE(says(o, "srun --mpi=pmix")) << o.text;
  EXPECT_EQ(o.exit_status, 1);
  const Outcome older = run_command(clean_environment("SLURM_STEP_ID=0 SLURM_PROCID=1 SLURM_NTASKS=2"));
  EXPECT_TRUE(says(older, "caught comm_launch: srun started 2 tasks")) << older.text;
}

TEST(Launch, OneProcessNeedsNoMpi) {
  for (const char* environment : {"", "SLURM_STEP_ID=0 SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=1",
                                  "SLURM_PROCID=0 SLURM_NTASKS=8",  // a batch script: no step
                                  "SLURM_STEP_ID=0 SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=1 PMIX_RANK=0"}) {
    const Outcome o = run_command(clean_environment(environment));
    EXPECT_TRUE(says(o, "world of 1")) << environment << ": " << o.text;
    EXPECT_EQ(o.exit_status, 0) << environment;
  }
}

// A launcher of another MPI: every process finds itself alone.
TEST(Launch, ManyWorldsOfOneAreRefused) {
  const Outcome o =
      run_command(clean_environment("OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 PMI_RANK=0 PMI_SIZE=4"));
  EXPECT_TRUE(says(o, "caught comm_launch: the launcher started 4 ranks")) << o.text;
  EXPECT_EQ(o.exit_status, 1);
}

// ---- What the children do
// ---------------------------------------------------------------------------------------------

struct Sums {
  explicit Sums(World& world)
      : communicator(make_communicator({}, world, backend)),
        memory(communicator->allocate(1 << 20, "sums")),
        done(communicator->make_event()) {}
  void run(int first, int last) {
    for (int i = first; i <= last; ++i) {
      communicator->all_reduce_async({memory->data(), 1000, DType::fp32}, ready, *done,
                                     "bucket " + std::to_string(i) + " of 9");
      done->synchronize();
    }
  }
  reference::ReferenceBackend backend;
  HostEvent ready;
  std::unique_ptr<Communicator> communicator;
  std::unique_ptr<Memory> memory;
  std::unique_ptr<Event> done;
};

void behave(const std::string& how, World& world) {
  const int last = world.size() - 1;
  if (how == "start") {
    std::printf("world of %d\n", world.size());
  } else if (how == "abort") {
    if (world.rank() == 1) world.abort(3);
    world.barrier();
  } else if (how == "killed-before-barrier") {
    if (world.rank() == 1) ::raise(SIGKILL);
    world.barrier();
  } else if (how == "killed-in-sums") {
    Sums sums(world);
    sums.run(1, 3);
    if (world.rank() == 1) ::raise(SIGKILL);
    sums.run(4, 9);
  } else if (how == "stopped") {
    Sums sums(world);
    if (world.rank() == 1) ::raise(SIGSTOP);
    sums.run(1, 9);
  } else if (how == "leaves-early") {
    if (world.rank() == 1) return;
    world.any(false);
    world.any(false);
  } else if (how == "throws") {
    const std::vector<GradientTensor> tensors = {{"a", 0, 1000000}, {"b", 1000000, 1000000}};
    reference::ReferenceBackend backend;
    auto communicator = make_communicator({}, world, backend);
    auto memory = communicator->allocate(8000000, "gradients");
    auto stream = backend.make_stream();
    GradientReducer reducer(*communicator, backend, static_cast<float*>(memory->data()), make_buckets(tensors, 1));
    reducer.tensor_done(0, *stream);
    if (world.rank() != 1) reducer.tensor_done(1, *stream);
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    if (world.rank() == 1) fail(ErrorCode::internal, "thrown in a step");
    reducer.finish(*stream);
  } else if (how == "elsewhere" || how == "elsewhere-last") {
    Sums sums(world);
    sums.run(1, 1);
    if (world.rank() == last) std::this_thread::sleep_for(std::chrono::seconds(40));
    sums.run(2, 9);
  }
}

int child(int argc, char** argv) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);  // a stopped one is not left behind
  std::unique_ptr<World> world;
  try {
    const char* limit = std::getenv("WATCHDOG_SECONDS");
    world = start_world(&argc, &argv, limit != nullptr ? std::atof(limit) : 60);
    behave(argv[2], *world);
    return 0;
  } catch (const Error& e) {
    std::this_thread::sleep_for(std::chrono::milliseconds(200));  // main is busy, the communication thread goes on
    log::error("caught {}: {}", entry(e.code()).code, e.what());
    if (world) world->abort(kExitFailed);
    return kExitFailed;
  }
}

const test::Role role("lost-rank", child);

}  // namespace
}  // namespace lockstep::comm

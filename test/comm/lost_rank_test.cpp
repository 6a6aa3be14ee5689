// A lost rank, and wrong launches. The tests start this program again as several ranks; see children.h.
// sanitizers: no
// cores: 0
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

#include "comm/buckets.h"
#include "comm/diagnosis.h"
#include "comm/world.h"
#include "lockstep/error.h"
#include "lockstep/log.h"
#include "test/comm/bucket_list.h"
#include "test/comm/children.h"
#include "test/reference/backend.h"

namespace lockstep::comm {
namespace {

// The peers of a killed rank wait for an event, which cannot throw. The communication thread ends their processes.
TEST(LostRank, ReportsRankKilledBetweenAllReduces) {
  const Outcome o = run_ranks_with_recovery(3, "", "--lost-rank killed-in-all-reduces");
  EXPECT_TRUE(contains(o, "rank 1 on ")) << o.output;
  EXPECT_TRUE(contains(o, "has died: its process ended")) << o.output;
  EXPECT_TRUE(contains(o, "'bucket 4 of 9'")) << o.output;
  EXPECT_TRUE(contains(o, "status 1 of rank")) << o.output;
  EXPECT_LT(o.seconds, 20) << o.output;
}

// Calls of World throw Error, and main prints it.
TEST(LostRank, ReportsRankKilledBeforeBarrier) {
  const Outcome o = run_ranks_with_recovery(3, "", "--lost-rank killed-before-barrier");
  EXPECT_TRUE(contains(o, "caught comm_rank_died: rank 1 on ")) << o.output;
  EXPECT_TRUE(contains(o, "'barrier'")) << o.output;
  EXPECT_TRUE(contains(o, "status 1 of rank")) << o.output;
  EXPECT_LT(o.seconds, 20) << o.output;
}

// The messages between two ranks in lockstep doctor. The rank that has no peer in this round learns of the loss at the
// barrier.
TEST(LostRank, ReportsRankKilledBeforeMessagesOfPair) {
  const Outcome o = run_ranks_with_recovery(3, "", "--lost-rank killed-before-pair");
  EXPECT_TRUE(contains(o, "caught comm_rank_died: rank 1 on ")) << o.output;
  EXPECT_TRUE(contains(o, "'pairs of ranks'")) << o.output;
  EXPECT_TRUE(contains(o, "status 1 of rank")) << o.output;
  EXPECT_LT(o.seconds, 20) << o.output;
}

TEST(LostRank, ReportsStoppedRankAfterTimeLimit) {
  const Outcome o = run_ranks_with_recovery(2, "WATCHDOG_SECONDS=4", "--lost-rank stopped");
  EXPECT_TRUE(contains(o, "rank 0 on ")) << o.output;
  EXPECT_TRUE(contains(o, "for rank 1 on ")) << o.output;
  EXPECT_TRUE(contains(o, "has not responded for")) << o.output;
  EXPECT_TRUE(contains(o, "status 1 of rank")) << o.output;
  EXPECT_LT(o.seconds, 30) << o.output;
}

TEST(LostRank, HasTheTimeLimitThatTheWorldWasGivenLast) {
  const Outcome o = run_ranks_with_recovery(2, "WATCHDOG_SECONDS=1", "--lost-rank slow-start");
  EXPECT_TRUE(contains(o, "the start is over")) << o.output;
  EXPECT_TRUE(contains(o, "for rank 1 on ")) << o.output;
  EXPECT_TRUE(contains(o, "'bucket 2 of 9'")) << o.output;
}

TEST(LostRank, ReportsLastCollectiveOfMissingRank) {
  const Outcome o = run_ranks_with_recovery(2, "WATCHDOG_SECONDS=2", "--lost-rank missing");
  EXPECT_TRUE(contains(o, "in 'bucket 2 of 9'")) << o.output;
  EXPECT_TRUE(contains(o, "for rank 1 on ")) << o.output;
  EXPECT_TRUE(contains(o, "its last was 'bucket 1 of 9', collective 1")) << o.output;
  EXPECT_TRUE(contains(o, "status 1 of rank")) << o.output;
  EXPECT_LT(o.seconds, 20) << o.output;
}

// There are two simulated nodes. Rank 0 learns from control messages that rank 3 on the other node is missing.
TEST(LostRank, ReportsMissingRankOfAnotherNode) {
  const Outcome o =
      run_ranks_with_recovery(4, "LOCKSTEP_RANKS_PER_NODE=2 WATCHDOG_SECONDS=3", "--lost-rank missing-last");
  EXPECT_TRUE(contains(o, "for rank 3 on ")) << o.output;
  EXPECT_TRUE(contains(o, "its last was 'bucket 1 of 9', collective 1")) << o.output;
  EXPECT_TRUE(contains(o, "status 1 of rank")) << o.output;
  EXPECT_LT(o.seconds, 20) << o.output;
}

// One rank reaches the end of main while the others are still in a collective. The two calls are not confused.
TEST(LostRank, DetectsRankThatLeavesEarly) {
  const Outcome o = run_ranks_with_recovery(3, "", "--lost-rank leaves-early");
  EXPECT_TRUE(contains(o, "is in 'end of the run'")) << o.output;
  EXPECT_TRUE(contains(o, "the ranks no longer make the same calls")) << o.output;
  EXPECT_TRUE(contains(o, "status 1 of rank")) << o.output;
  EXPECT_LT(o.seconds, 20) << o.output;
}

// An exception ends a step while all-reduces are in flight. Its message must be printed.
TEST(LostRank, PrintsExceptionThrownWithAllReducesInFlight) {
  for (const char* environment : {"", "LOCKSTEP_RANKS_PER_NODE=2"}) {
    const Outcome o = run_ranks_with_recovery(3, environment, "--lost-rank throws");
    EXPECT_TRUE(contains(o, "caught internal: thrown in a step")) << o.output;
    EXPECT_FALSE(contains(o, "status 139")) << o.output;
    EXPECT_TRUE(contains(o, "status 1 of rank")) << o.output;
    EXPECT_LT(o.seconds, 20) << o.output;
  }
}

// As on a cluster, mpirun ends the other ranks by itself.
TEST(LostRank, ReportsKilledRankUnderOrdinaryMpirun) {
  const Outcome o = run_ranks(3, "", self() + " --lost-rank killed-in-all-reduces");
  EXPECT_NE(o.exit_status, 0) << o.output;
  EXPECT_TRUE(contains(o, "rank 1 on ")) << o.output;
  EXPECT_TRUE(contains(o, "has died: its process ended")) << o.output;
  EXPECT_LT(o.seconds, 20) << o.output;
}

TEST(LostRank, AbortEndsAllRanksWithGivenStatus) {
  const Outcome o = run_ranks(3, "", self() + " --lost-rank abort");
  EXPECT_EQ(o.exit_status, 3) << o.output;
  EXPECT_LT(o.seconds, 10) << o.output;
}

/// A command that starts this program as a child with these variables and without those of any launcher.
std::string launch_command(const std::string& variables) {
  std::string out = "env";
  for (const char* name : {"SLURM_STEP_ID", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_STEP_NUM_TASKS",
                           "OMPI_COMM_WORLD_SIZE", "PMIX_RANK", "PMIX_NAMESPACE", "PMI_RANK", "PMI_SIZE", "PMI_FD"}) {
    out += std::string(" -u ") + name;
  }
  return out + " " + variables + " " + self() + " --lost-rank start";
}

TEST(Launch, RejectsSlurmStepWithoutPmi) {
  const Outcome o = run_command(launch_command("SLURM_STEP_ID=0 SLURM_PROCID=1 SLURM_STEP_NUM_TASKS=4"));
  EXPECT_TRUE(contains(o, "caught comm_launch: srun started 4 tasks")) << o.output;
  EXPECT_TRUE(contains(o, "srun --mpi=pmix")) << o.output;
  EXPECT_EQ(o.exit_status, 1);
  const Outcome older = run_command(launch_command("SLURM_STEP_ID=0 SLURM_PROCID=1 SLURM_NTASKS=2"));
  EXPECT_TRUE(contains(older, "caught comm_launch: srun started 2 tasks")) << older.output;
}

TEST(Launch, RunsOneProcessWithoutMpi) {
  for (const char* environment : {"", "SLURM_STEP_ID=0 SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=1",
                                  "SLURM_PROCID=0 SLURM_NTASKS=8",  // a batch script, not a step
                                  "SLURM_STEP_ID=0 SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=1 PMIX_RANK=0"}) {
    const Outcome o = run_command(launch_command(environment));
    EXPECT_TRUE(contains(o, "world of 1")) << environment << ": " << o.output;
    EXPECT_EQ(o.exit_status, 0) << environment;
  }
}

// The launcher belongs to another MPI, so every process finds itself in a world of one rank.
TEST(Launch, RejectsWorldsOfOneRankEach) {
  const Outcome o =
      run_command(launch_command("OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 PMI_RANK=0 PMI_SIZE=4"));
  EXPECT_TRUE(contains(o, "caught comm_launch: the launcher started 4 ranks")) << o.output;
  EXPECT_EQ(o.exit_status, 1);
}

// ---- The behaviour of the children

struct AllReduces {
  explicit AllReduces(World& world)
      : communicator(make_communicator({}, world, backend)),
        memory(communicator->allocate(1 << 20, "all-reduces")),
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

void behave(const std::string& behavior, World& world) {
  const int last = world.size() - 1;
  if (behavior == "start") {
    std::printf("world of %d\n", world.size());
  } else if (behavior == "abort") {
    if (world.rank() == 1) world.abort(3);
    world.barrier();
  } else if (behavior == "killed-before-barrier") {
    if (world.rank() == 1) ::raise(SIGKILL);
    world.barrier();
  } else if (behavior == "killed-before-pair") {
    const auto probe = make_pair_probe(world);
    if (world.rank() == 1) ::raise(SIGKILL);
    probe->exchange(world.rank() == 0 ? 1 : -1);
    world.barrier();
  } else if (behavior == "killed-in-all-reduces") {
    AllReduces all_reduces(world);
    all_reduces.run(1, 3);
    if (world.rank() == 1) ::raise(SIGKILL);
    all_reduces.run(4, 9);
  } else if (behavior == "stopped") {
    AllReduces all_reduces(world);
    if (world.rank() == 1) ::raise(SIGSTOP);
    all_reduces.run(1, 9);
  } else if (behavior == "slow-start") {
    world.set_watchdog_seconds(60);
    AllReduces all_reduces(world);
    if (world.rank() == 1) std::this_thread::sleep_for(std::chrono::seconds(4));
    all_reduces.run(1, 1);
    if (world.rank() == 0) std::printf("the start is over\n");
    world.set_watchdog_seconds(1);
    if (world.rank() == 1) std::this_thread::sleep_for(std::chrono::seconds(40));
    all_reduces.run(2, 9);
  } else if (behavior == "leaves-early") {
    if (world.rank() == 1) return;
    world.any(false);
    world.any(false);
  } else if (behavior == "throws") {
    const std::vector<GradientTensor> tensors = {{"a", 0, 1000000}, {"b", 1000000, 1000000}};
    reference::ReferenceBackend backend;
    auto communicator = make_communicator({}, world, backend);
    auto memory = communicator->allocate(8000000, "gradients");
    auto stream = backend.make_stream();
    const auto write = [&](std::size_t tensor, Stream&) {
      if (world.rank() != 1 || tensor == 0) return;
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      fail(ErrorCode::internal, "thrown in a step");
    };
    list_of_buckets(make_buckets(tensors, 1), 2, static_cast<float*>(memory->data()), write, *communicator, backend)
        .queue(*stream);
  } else if (behavior == "missing" || behavior == "missing-last") {
    AllReduces all_reduces(world);
    all_reduces.run(1, 1);
    if (world.rank() == last) std::this_thread::sleep_for(std::chrono::seconds(40));
    all_reduces.run(2, 9);
  }
}

int child(int argc, char** argv) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);  // so that a stopped child does not survive the test
  std::unique_ptr<World> world;
  try {
    const char* limit = std::getenv("WATCHDOG_SECONDS");
    world = start_world(&argc, &argv, limit != nullptr ? std::atof(limit) : 60);
    behave(argv[2], *world);
    return 0;
  } catch (const Error& e) {
    std::this_thread::sleep_for(
        std::chrono::milliseconds(200));  // the communication thread continues while main is busy
    log::error("caught {}: {}", entry(e.code()).code, e.what());
    if (world) world->abort(kExitFailed);
    return kExitFailed;
  }
}

const test::Role role("lost-rank", child);

}  // namespace
}  // namespace lockstep::comm

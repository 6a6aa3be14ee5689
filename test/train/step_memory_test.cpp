// ranks: 1 2 4
// timeout: 400
// sanitizers: no
// environment: LOCKSTEP_RANKS_PER_NODE=2
// Memory use is as planned: a step allocates no large memory, the frozen backend refuses allocations, and the memory
// that steps and a save add to the process is at most 8 % more and at most 5 % less than the plan. 4 ranks are on two
// simulated nodes.
#include <malloc.h>

#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>

#include "base/process.h"
#include "checkpoint/background_saver.h"
#include "data/loader.h"
#include "kernels/cpu/base/simd.h"
#include "lockstep/error.h"
#include "test/checkpoint/support.h"
#include "test/comm/test_world.h"
#include "test/support/emulator.h"
#include "test/support/heap_count.h"
#include "test/train/small_run.h"

namespace lockstep {
namespace {

using comm::test_world;

void check(bool good, int rank, const std::string& what) { EXPECT_TRUE(good) << "rank " << rank << ": " << what; }

/// Resets VmHWM, after returning freed memory to the system.
void forget_peak() {
  ::malloc_trim(0);
  std::ofstream("/proc/self/clear_refs") << 5;
}

void plan_tells_the_peak(World& world, int micro_batches, int steps, Precision precision = Precision::fp32) {
  Config config = test::small_config(32, 32 * world.size());
  config.precision = precision;
  config.train.micro_batches = micro_batches;
  if (precision == Precision::bf16) config.comm.gradients = "bf16";
  config.model.width = 64;
  config.comm.bucket_mb = 25;
  const std::shared_ptr<const data::ImageSet> set = data::make_synthetic_set(1, 2000, 32, 32, 3, 10, "train");
  const auto backend = make_backend({.device = "cpu", .threads = 1});
  const HeapWatch watch;
  const auto communicator = comm::make_communicator(config.comm, world, *backend);
  const std::int64_t communicator_bytes = watch.count().held_bytes;
  const auto task = tasks::make_image_classification(config, set, nullptr);
  train::StepPlan plan(config, *task, train::batch_shape(config, world.rank(), world.size()), *backend,
                       comm::topology_of(config.comm, world));
  forget_peak();
  const std::uint64_t before = resident_memory_bytes();
  train::Replica replica(plan, *backend, *communicator);
  replica.initialize(1);
  checkpoint::BackgroundSaver saver(replica.copied_sources(), world, replica.copying());
  data::Loader loader(set, {.global_batch = plan.batch().global_batch,
                            .capacity = plan.batch().largest_micro_batch(),
                            .n_micro_batches = plan.batch().n_micro_batches,
                            .first_shard = plan.batch().shard_of(world.rank(), 0),
                            .shard_stride = plan.batch().shard_stride(),
                            .total_shards = plan.batch().n_shards(),
                            .seed = 1});
  for (int step = 0; step < steps; ++step) {
    replica.begin_step(
        plan.batch(),
        train::make_step_scalars(
            {.step = step, .nominal_count = static_cast<double>(plan.batch().global_batch), .learning_rate = 0.01},
            config.optimizer));
    for (int i = 0; i < plan.batch().n_micro_batches; ++i) {
      replica.run(loader.next());
    }
    replica.result(0);
  }
  const std::uint64_t before_save = resident_memory_bytes();
  const std::string path = fmt::format("/tmp/lockstep_step_memory_test.{}.h5", ::getppid());  // the same on all ranks
  saver.start(path, checkpoint::test::small_state(), {});
  check(!saver.wait().error, world.rank(), "the save failed");
  // The system provides the memory of the copy only when the first save writes to it.
  check(resident_memory_bytes() > before_save + plan.memory().checkpoint / 2, world.rank(),
        "the copy took memory before there was a save");
  if (world.rank() == 0) std::filesystem::remove(path);
  const double grown = static_cast<double>(peak_memory_bytes()) - static_cast<double>(before);
  const double planned = static_cast<double>(plan.memory().total());
  // In addition to its buffers, a communicator has queues of requests; there are more if many chunks are in flight.
  const std::int64_t buffer_bytes = static_cast<std::int64_t>(plan.memory().node_buffers);
  const bool is_leader = world.n_nodes() > 1 && world.local_rank() == 0;
  check((buffer_bytes > 0) == is_leader, world.rank(), "only leaders have buffers for other nodes");
  check(!heap_is_counted() || std::abs(communicator_bytes - buffer_bytes) < 256 * 1024, world.rank(),
        fmt::format("the communicator allocated {} bytes, of which {} were planned", communicator_bytes, buffer_bytes));
  check((plan.memory().partial_sums > 0) == (micro_batches > 0), world.rank(), "the plan lacks partial sums");
  std::printf("rank %d of %d: planned %.1f MiB, grown by %.1f MiB (%+.1f %%)\n", world.rank(), world.size(),
              planned / (1 << 20), grown / (1 << 20), 100 * (grown / planned - 1));
  // In addition to its copy, a save briefly needs some memory. Of its buffers, a leader has touched only as many as
  // there were chunks in flight at the same time.
  const double least = 0.95 * (planned - static_cast<double>(buffer_bytes));
  check(grown < 1.08 * planned && grown > least, world.rank(), "the plan is more than 5 % or 8 % off");
  world.barrier();  // no rank may free memory that others still sum
}

void steps_take_no_memory(World& world, int micro_batches, Precision precision = Precision::fp32) {
  Config config = test::small_config(16, 8 * world.size());
  config.precision = precision;
  config.train.micro_batches = micro_batches;
  const auto backend = make_backend({.device = "cpu", .threads = 1});
  const auto communicator = comm::make_communicator(config.comm, world, *backend);
  test::SmallRun run(config, *backend, *communicator);
  for (int step = 0; step < 3; ++step) run.step(step);
  world.barrier();
  const HeapWatch watch;
  for (int step = 3; step < 6; ++step) run.step(step);
  const HeapCount count = watch.count();
  std::printf("rank %d: %zu small blocks in 3 steps, the largest of %zu bytes, %lld bytes held\n", world.rank(),
              count.n_allocations, count.largest_bytes, static_cast<long long>(count.held_bytes));
  // The queues of the communication thread allocate and free blocks of some hundred bytes, and oneDNN's matrix products
  // on AVX2 some blocks of 17 kB.
  check(!heap_is_counted() || count.largest_bytes <= (cpu::isa() == cpu::Isa::avx512 ? 4096u : 20'000u), world.rank(),
        "a step allocated memory on the heap");
  check(!heap_is_counted() || count.held_bytes <= 4096, world.rank(), "a step kept memory");
  bool refused = false;
  try {
    backend->allocate(64, "test");
  } catch (const Error&) {
    refused = true;
  }
  check(refused, world.rank(), "the frozen backend allocated memory");
  world.barrier();
}

// Between nodes, MPI itself allocates memory while it sends.
TEST(StepMemory, StepsAllocateNothing) {
  if (test_world->n_nodes() > 1) GTEST_SKIP() << "several nodes";
  steps_take_no_memory(*test_world, 0);
  steps_take_no_memory(*test_world, 4 * test_world->size());
  steps_take_no_memory(*test_world, 0, Precision::bf16);
}

TEST(StepMemory, ThePlanPredictsThePeak) {
  if (test::in_emulator()) GTEST_SKIP() << "the emulator's memory counts as that of the process";
  if (test_world->n_nodes() > 1) {
    plan_tells_the_peak(*test_world, 0, 2);
    plan_tells_the_peak(*test_world, 0, 2, Precision::bf16);
  } else {
    plan_tells_the_peak(*test_world, 0, 8);
    plan_tells_the_peak(*test_world, 4 * test_world->size(), 5);
    plan_tells_the_peak(*test_world, 0, 5, Precision::bf16);
  }
  test_world->barrier();
}

}  // namespace
}  // namespace lockstep

// ranks: 1 2
// timeout: 300
// sanitizers: no
// A whole training on a stand-in for a device whose streams are queues (test/support/recording_backend.h): the same
// bits as on the backend behind it, where each call is over when it returns. So no copy, op or sum is without the event
// that it must wait for, by whichever communicator ranks sum. And the order of a step's calls, and that nothing is
// allocated between them.
#include <algorithm>
#include <cstdio>

#include "test/comm/fake_nccl.h"
#include "test/support/recording_backend.h"
#include "test/train/small_run.h"

namespace lockstep {
namespace {

bool has_failed = false;
void check(bool holds, int rank, const std::string& what) {
  if (holds) return;
  has_failed = true;
  std::printf("rank %d: %s\n", rank, what.c_str());
}

constexpr int kSteps = 2;

Config config_of(World& world, const std::string& backend) {
  Config config = test::small_config(8, 8);
  config.comm.backend = backend;
  config.train.micro_batches = 4;  // sums by a tree: the same bits whoever sums
  config.optimizer.momentum = 0.9;
  if (world.size() == 1) config.comm.backend = "auto";
  return config;
}

std::vector<float> weights_after(test::SmallRun& run) {
  for (int step = 0; step < kSteps; ++step) run.step(step);
  return run.all_weights();
}

void the_bits_are_the_same(World& world) {
  const auto cpu = make_backend({.device = "cpu", .threads = 1});
  const Config plain = config_of(world, "auto");
  const SumOrder order = train::batch_shape(plain, world.rank(), world.size()).order_over_ranks();
  const auto host_communicator = comm::make_communicator(plain.comm, world, *cpu, order);
  std::vector<float> expected;
  {
    test::SmallRun run(plain, *cpu, *host_communicator);
    expected = weights_after(run);
    world.barrier();
  }
  struct Case {
    const char* backend;
    double slowness_ms;  // of each piece of work
  };
#ifdef LOCKSTEP_CUDA
  const std::vector<Case> cases{{"nccl", 0}, {"nccl", 0.1}, {"staged", 0}};
#else
  const std::vector<Case> cases{{"staged", 0}, {"staged", 0.1}};
#endif
  for (const Case& c : cases) {
    const auto inner = make_backend({.device = "cpu", .threads = 1});
    test::RecordingBackend device(*inner, "GPU-" + std::to_string(world.rank()));
    const Config config = config_of(world, c.backend);
    const auto communicator = comm::make_communicator(config.comm, world, device, order);
    test::SmallRun run(config, device, *communicator);
    device.slow_down(c.slowness_ms);
    const bool same = weights_after(run) == expected;
    device.slow_down(0);
    check(same, world.rank(), "other weights by " + communicator->describe());
    world.barrier();
  }
}

void calls_are_in_order(World& world) {
  const auto inner = make_backend({.device = "cpu", .threads = 1});
  test::RecordingBackend device(*inner, "GPU-" + std::to_string(world.rank()));
  const Config config = config_of(world, "auto");
  const auto communicator = comm::make_communicator(config.comm, world, device);
  test::SmallRun run(config, device, *communicator);
  device.recording().clear();
  run.step(0);
  const std::vector<test::Call> calls = device.recording().calls();
  const auto count = [&](const std::string& what) {
    return std::ranges::count_if(calls, [&](const test::Call& call) { return call.what == what; });
  };
  check(count("allocate") + count("allocate_host") + count("seal") + count("unseal") == 0, world.rank(),
        "a step allocates");
  const auto place = [&](const std::string& what) {
    return std::ranges::find_if(calls, [&](const test::Call& call) { return call.what == what; });
  };
  const auto optimizer = place("optimizer.apply"), norm = place("clip_norm.apply");
  check(optimizer != calls.end() && norm < optimizer, world.rank(), "the norm is not taken before the update");
  // Before the norm the compute stream waits for the batch, for as many sums as there are buckets, and for the loss.
  const int compute = norm->stream;
  const auto waits = std::count_if(
      calls.begin(), norm, [&](const test::Call& call) { return call.what == "wait" && call.stream == compute; });
  const auto sums = static_cast<std::ptrdiff_t>(run.plan().buckets().size()) + 1;
  check(waits == sums + run.plan().batch().pieces, world.rank(),
        fmt::format("the update comes after {} waits, for {} sums and {} batches", waits, sums,
                    run.plan().batch().pieces));
  // The first sum is given away while ops of the backward pass are still to come.
  const auto backward = place("conv2d.backward");
  const auto first_sum =
      std::find_if(backward, calls.end(), [&](const test::Call& call) { return call.what == "record"; });
  const auto last_backward = std::find_if(calls.rbegin(), calls.rend(), [](const test::Call& call) {
                               return call.what == "conv2d.backward";
                             }).base();
  check(first_sum < last_backward, world.rank(), "sums begin when the backward pass is over");
  world.barrier();
}

}  // namespace
}  // namespace lockstep

int main(int argc, char** argv) {
  using namespace lockstep;  // NOLINT
  const comm::NcclHome fake;
  const auto world = comm::start_world(&argc, &argv);
  the_bits_are_the_same(*world);
#ifdef LOCKSTEP_CUDA
  calls_are_in_order(*world);
#else
  if (world->size() == 1) calls_are_in_order(*world);
#endif
  return world->any(has_failed) ? 1 : 0;
}

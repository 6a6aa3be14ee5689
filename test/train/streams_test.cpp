// ranks: 1 2
// timeout: 600
// sanitizers: no
// A whole training on a stand-in for a device whose streams are queues (test/support/recording_backend.h) has the same
// bits as on the inner backend, where each call runs its work before it returns. This shows that every copy, op and sum
// waits for the events that it needs, with each communicator, whether a step runs call by call or is captured and
// launched as a whole. The test also checks the order of a step's calls, that nothing is allocated between them, and
// that the host waits for none of them, not even to decide on a loss scale.
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <ranges>
#include <set>

#include "base/file.h"
#include "checkpoint/background_saver.h"
#include "test/comm/fake_nccl.h"
#include "test/comm/test_world.h"
#include "test/support/recording_backend.h"
#include "test/train/small_run.h"

namespace lockstep {
namespace {

using comm::test_world;

void check(bool holds, int rank, const std::string& what) { EXPECT_TRUE(holds) << "rank " << rank << ": " << what; }

using test::GraphCapture;
constexpr GraphCapture kCaptures[] = {GraphCapture::off, GraphCapture::on};
const char* text_of(GraphCapture capture) { return capture == GraphCapture::off ? "call by call" : "captured"; }

/// What is trained, and for how many steps: if steps are captured, until each kind of micro-batch was run, captured and
/// launched again (QueuedGraph).
struct Training {
  const char* name;
  int steps;
  void (*change)(Config&);
};
// Sums by a tree; then sums in the middle of each micro-batch, where each rank runs three micro-batches per step and
// every third step is short. In the two after that, the shards of a rank change in other steps than those of another
// rank, or it runs fewer micro-batches. All ranks must still capture an exchange in the same step, which the fake NCCL
// checks.
const Training kTrainings[] = {
    {"micro-batches", 6, [](Config& config) { config.train.micro_batches = 4; }},
    {"synchronised norms", 9,
     [](Config& config) {
       config.train.accumulate = 3;
       config.batch_norm.synchronize = true;
       config.data.drop_last = false;
       config.data.synthetic_samples = 22;
     }},
    {"micro-batches of a smaller last batch", 9,
     [](Config& config) {
       config.train.micro_batches = 4;
       config.data.drop_last = false;
       config.data.synthetic_samples = 22;
     }},
    {"sharded optimizer", 5,
     [](Config& config) {
       config.train.micro_batches = 3;
       config.train.global_batch = 9;
       config.train.shard = "optimizer";
     }},
    {"fine-tuning", 5,
     [](Config& config) {
       config.train.micro_batches = 4;
       config.train.freeze = {"conv1", "bn1", "layer1", "layer3.1.bn1"};
       config.train.class_weights = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9};
       config.optimizer.groups = {"fc learning_rate=1 weight_decay=0", "layer4 learning_rate=0.01"};
     }},
    {"bf16", 4,
     [](Config& config) {
       config.train.accumulate = 2;
       config.precision = Precision::bf16;
     }},
    {"sharded gradients", 5,
     [](Config& config) {
       config.train.micro_batches = 4;
       config.train.shard = "gradients";
     }},
    {"sharded weights", 5,
     [](Config& config) {
       config = test::small_text_config(4, 8);
       config.train.micro_batches = 4;
       config.train.shard = "parameters";
     }},
    {"sharded weights in 16 bits", 4,
     [](Config& config) {
       config = test::small_text_config(3, 8);
       config.precision = Precision::bf16;
       config.model.recompute = "block";
       config.train.accumulate = 2;
       config.train.shard = "parameters";
     }},
    {"optimizer on the host", 5,
     [](Config& config) {
       config = test::small_text_config(3, 8);
       config.precision = Precision::bf16;
       config.train.offload = "optimizer";
     }},
    {"sharded optimizer on the host", 5,
     [](Config& config) {
       config = test::small_text_config(3, 8);
       config.precision = Precision::bf16;
       config.train.micro_batches = 4;
       config.train.shard = "gradients";
       config.train.offload = "optimizer";
     }},
    {"sharded weights, optimizer on the host", 5,
     [](Config& config) {
       config = test::small_text_config(3, 8);
       config.precision = Precision::bf16;
       config.train.accumulate = 2;
       config.train.shard = "parameters";
       config.train.offload = "optimizer";
     }},
};

Config config_of(World& world, const std::string& backend, const Training& training = kTrainings[0]) {
  Config config = test::small_config(8, 8);
  config.optimizer.momentum = 0.9;
  training.change(config);
  config.comm.backend = world.size() == 1 && backend != "nccl" ? "auto" : backend;
  return config;
}

std::unique_ptr<Communicator> communicator_of(const Config& config, World& world, Backend& backend) {
  return comm::make_communicator(config.comm, world, backend,
                                 train::batch_shape(config, world.rank(), world.size()).order_over_ranks());
}

std::unique_ptr<Backend> cpu() { return make_backend({.device = "cpu", .threads = 1}); }
std::string uuid_of(World& world) { return "GPU-" + std::to_string(world.rank()); }

/// Checks that calls which a device would refuse are refused.
void check_refusals(test::RecordingBackend& device, World& world, const std::string& name) {
  for (const test::Call& call : device.recording().calls())
    check(!call.what.starts_with("refused"), world.rank(), name + ": " + call.what);
}

struct Trained {
  std::vector<double> losses, norms;
  std::vector<float> weights;
  bool operator==(const Trained&) const = default;
};

Trained train(test::SmallRun& run, int steps) {
  Trained out;
  for (int step = 0; step < steps; ++step) {
    out.losses.push_back(run.step(step));
    out.norms.push_back(run.result().gradient_norm);
  }
  if (run.plan().has_all_masters()) out.weights = run.all_weights();  // otherwise, steps depend on all weights
  return out;
}

void the_bits_are_the_same(World& world, const Training& training) {
  const auto host = cpu();
  const Config plain = config_of(world, "auto", training);
  const auto host_communicator = communicator_of(plain, world, *host);
  Trained expected;
  {
    test::SmallRun run(plain, *host, *host_communicator);
    expected = train(run, training.steps);
    world.barrier();
  }
  struct Case {
    const char* backend;
    double slowness_ms;  // delay of each operation
    GraphCapture capture;
  };
#ifdef LOCKSTEP_CUDA
  const std::vector<Case> cases{{"nccl", 0, GraphCapture::off},   {"nccl", 0.1, GraphCapture::off},
                                {"staged", 0, GraphCapture::off}, {"nccl", 0, GraphCapture::on},
                                {"nccl", 0.1, GraphCapture::on},  {"staged", 0, GraphCapture::on}};
#else
  const std::vector<Case> cases{
      {"staged", 0, GraphCapture::off}, {"staged", 0.1, GraphCapture::off}, {"staged", 0, GraphCapture::on}};
#endif
  for (const Case& c : cases) {
    const auto inner = cpu();
    test::RecordingBackend device(*inner, uuid_of(world), c.capture);
    const Config config = config_of(world, c.backend, training);
    const auto communicator = communicator_of(config, world, device);
    const std::string name = fmt::format("{}, {}, by {}", training.name, text_of(c.capture), communicator->describe());
    check(communicator->describe().starts_with("NCCL ") == (std::string_view(c.backend) == "nccl"), world.rank(),
          "not by " + std::string(c.backend) + ": " + name);
    {
      test::SmallRun run(config, device, *communicator);
      device.slow_down(c.slowness_ms);
      const bool same = train(run, training.steps) == expected;
      device.slow_down(0);
      check(same, world.rank(), "different losses or weights: " + name);
    }
    check_refusals(device, world, name);
    world.barrier();
  }
}

std::ptrdiff_t count(const std::vector<test::Call>& calls, const std::string& what) {
  return std::ranges::count(calls, what, &test::Call::what);
}

/// For a step whose last micro-batch runs call by call, which it also does while it is captured.
void check_order(const std::vector<test::Call>& calls, test::SmallRun& run, World& world) {
  const auto place = [&](const std::string& what) { return std::ranges::find(calls, what, &test::Call::what); };
  const auto optimizer = place("optimizer.apply"), norm = place("clip_norm.apply");
  check(optimizer != calls.end() && norm < optimizer, world.rank(), "the norm is not computed before the update");
  // Before the norm, the compute stream waits for the batch, for one sum per bucket, and for the loss.
  const int compute = norm->stream;
  const auto waits = std::count_if(
      calls.begin(), norm, [&](const test::Call& call) { return call.what == "wait" && call.stream == compute; });
  const auto sums = static_cast<std::ptrdiff_t>(run.plan().buckets().size()) + 1;
  check(waits == sums + run.plan().batch().n_micro_batches, world.rank(),
        fmt::format("the update comes after {} waits, for {} sums and {} batches", waits, sums,
                    run.plan().batch().n_micro_batches));
  // The first sum is issued while ops of the backward pass are still to be issued.
  const auto backward = place("conv2d.backward");
  const auto first_sum =
      std::find_if(backward, calls.end(), [&](const test::Call& call) { return call.what == "record"; });
  const auto last_backward = std::find_if(calls.rbegin(), calls.rend(), [](const test::Call& call) {
                               return call.what == "conv2d.backward";
                             }).base();
  check(first_sum < last_backward || world.size() == 1, world.rank(),  // a single rank has one bucket
        "no sum begins before the backward pass has ended");
}

/// The host waits for none of the work that it queued in this step, and reads only the step's report.
void check_waits_of_host(const std::vector<test::Call>& calls, World& world) {
  check(count(calls, "copy_to_host") == 1, world.rank(), "a step copies more to the host than its report");
  const int compute = std::ranges::find(calls, "copy_to_host", &test::Call::what)->stream;
  std::set<int> given;  // events
  for (const test::Call& call : calls) {
    if (call.what == "record" && call.stream == compute) given.insert(call.event);
    check(call.what != "synchronize" || (call.stream < 0 && !given.contains(call.event)), world.rank(),
          fmt::format("the host waits in a step, for stream {}, event {}", call.stream, call.event));
  }
}

std::vector<test::Call> calls_of_step(int step, test::SmallRun& run, test::RecordingBackend& device, World& world) {
  device.recording().clear();
  run.start(step);
  std::vector<test::Call> calls = device.recording().calls();
  (void)run.replica().result(0);
  check(
      count(calls, "allocate") + count(calls, "allocate_host") + count(calls, "freeze") + count(calls, "unfreeze") == 0,
      world.rank(), "a step allocates");
  return calls;
}

void calls_are_in_order(World& world, GraphCapture capture) {
  const auto inner = cpu();
  test::RecordingBackend device(*inner, uuid_of(world), capture);
  const Config config = config_of(world, "auto");
  const auto communicator = comm::make_communicator(config.comm, world, device);
  test::SmallRun run(config, device, *communicator);
  const bool is_captured = capture == GraphCapture::on;
  const auto n_micro_batches = run.plan().batch().n_micro_batches;
  for (int step = 0; step < 6; ++step) {  // two eager ones, two that are captured, two that are launched
    const std::vector<test::Call> calls = calls_of_step(step, run, device, world);
    check_waits_of_host(calls, world);
    if (is_captured && step >= 4) {
      check(count(calls, "launch") == n_micro_batches, world.rank(), fmt::format("{} starts", count(calls, "launch")));
      check(count(calls, "conv2d.backward") == 0, world.rank(), "ops of a step that was captured");
    } else {
      check(count(calls, "begin_capture") > 0 || !is_captured || step < 1, world.rank(), "nothing is captured");
      check_order(calls, run, world);
    }
  }
  world.barrier();
}

struct Scaled {
  std::vector<train::StepResult> results;
  std::vector<float> weights_before, weights;
};

constexpr int kTooGreatAt = 6;
constexpr float kTooGreat = 1e38f;  // even for fp32

/// The scale is too large in one step. The host begins the next step before it learns of that.
Scaled train_scaled(test::SmallRun& run, const std::function<void(int step)>& before_step) {
  train::Replica& replica = run.replica();
  Scaled out;
  for (int step = 0; step < kTooGreatAt; ++step) {
    run.step(step);
    out.results.push_back(run.result());
  }
  out.weights_before = run.all_weights();
  replica.set_loss_scale({.scale = kTooGreat});
  before_step(kTooGreatAt);
  run.start(kTooGreatAt);
  before_step(kTooGreatAt + 1);
  run.start(kTooGreatAt + 1);
  out.results.push_back(replica.result(1));
  out.results.push_back(replica.result(0));
  out.weights = run.all_weights();
  return out;
}

void the_device_decides_on_the_loss_scale(World& world, GraphCapture capture) {
  Config config = config_of(world, "auto");
  config.loss_scale.kind = "dynamic";
  config.loss_scale.initial = 1024;
  const auto host = cpu();
  const auto host_communicator = communicator_of(config, world, *host);
  test::SmallRun expected_run(config, *host, *host_communicator);
  const Scaled expected = train_scaled(expected_run, [](int) {});
  const auto inner = cpu();
  test::RecordingBackend device(*inner, uuid_of(world), capture);
  {
    const auto communicator = communicator_of(config, world, device);
    test::SmallRun run(config, device, *communicator);
    std::vector<test::Call> calls;
    const Scaled trained = train_scaled(run, [&](int step) {
      if (step != kTooGreatAt) calls = device.recording().calls();
      device.recording().clear();
    });
    check_waits_of_host(calls, world);
    check(trained.weights == expected.weights, world.rank(), "the weights differ from those without streams");
    for (std::size_t i = 0; i < trained.results.size(); ++i) {
      const train::StepResult &a = trained.results[i], &b = expected.results[i];
      const bool is_great = i == kTooGreatAt;
      check(a.is_applied == b.is_applied && a.loss_scale.scale == b.loss_scale.scale &&
                a.next_loss_scale.scale == b.next_loss_scale.scale,
            world.rank(), fmt::format("the result of step {} differs from that without streams", i));
      if (i <= kTooGreatAt)
        check(a.only_overflowed() == is_great, world.rank(), fmt::format("step {}: whether it is skipped", i));
    }
    check(trained.results[kTooGreatAt + 1].loss_scale.scale == kTooGreat / 2, world.rank(),
          "the step after an overflow does not use half of its scale");
    if (trained.results[kTooGreatAt + 1].is_applied == 0)
      check(trained.weights == trained.weights_before, world.rank(), "a skipped step changes weights");
  }
  check_refusals(device, world, fmt::format("loss scale, {}", text_of(capture)));
  world.barrier();
}

constexpr int kEvaluated = 6;  // batches

/// Rank 1 has no samples in the last batch. Calls `before_end` before the sums are read.
LossSums evaluate(test::SmallRun& run, World& world, const std::function<void()>& before_end) {
  const std::int64_t n = run.plan().evaluation_batch();
  run.replica().begin_evaluation();
  for (int i = 0; i < kEvaluated; ++i)
    run.evaluate((i * world.size() + world.rank()) * n, world.rank() == 1 && i + 1 == kEvaluated ? 0 : n);
  before_end();
  return run.replica().end_evaluation();
}

void an_evaluation_waits_once(World& world, GraphCapture capture) {
  Config config = config_of(world, "auto");
  config.data.validation = "synthetic";
  config.evaluation.batch_per_rank = 2;
  const auto set = test::synthetic_set(config);
  const auto measure = [&](Backend& backend, const std::function<void()>& begin, const std::function<void()>& end) {
    const auto communicator = communicator_of(config, world, backend);
    std::array<LossSums, 2> sums;
    {
      test::SmallRun run(config, backend, *communicator, tasks::make_image_classification(config, set, set));
      sums[0] = evaluate(run, world, [] {});
      run.step(0);
      begin();
      sums[1] = evaluate(run, world, end);
    }
    world.barrier();
    return sums;
  };
  const auto host = cpu(), inner = cpu();
  const std::array expected = measure(
      *host, [] {}, [] {});
  test::RecordingBackend device(*inner, uuid_of(world), capture);
  std::vector<test::Call> calls;
  const std::array sums = measure(
      device, [&] { device.recording().clear(); }, [&] { calls = device.recording().calls(); });
  const std::string name = fmt::format("an evaluation, {}", text_of(capture));
  check_refusals(device, world, name);
  for (std::size_t i = 0; i < 2; ++i) {
    check(sums[i].loss == expected[i].loss && sums[i].correct == expected[i].correct, world.rank(),
          name + ": other sums than without streams");
    const auto n_batches = kEvaluated * world.size() - (world.size() > 1 ? 1 : 0);
    check(sums[i].count == n_batches * 2, world.rank(), fmt::format("{}: {} samples", name, sums[i].count));
  }
  check(sums[0].loss != sums[1].loss, world.rank(), name + ": a step changed nothing");
  check(count(calls, "copy_to_host") == 0, world.rank(), name + " reads a result of a batch");
  check(std::ranges::none_of(calls, [](const auto& c) { return c.what == "synchronize" && c.stream >= 0; }),
        world.rank(), name + " waits for a batch");
  if (capture == GraphCapture::on)
    check(count(calls, "launch") == kEvaluated - (world.rank() == 1 ? 1 : 0), world.rank(),
          fmt::format("{}: {} launches", name, count(calls, "launch")));
}

/// A save begins after this many steps, and ends after two more.
constexpr int kSavedAt = 4;

/// Each copy runs as late as possible, and nothing but a later step asks for it, so that the file is right only if
/// whatever overwrites the state waits.
void a_save_is_copied_while_the_next_step_runs(World& world, const Training& training, GraphCapture capture) {
  const Config config = config_of(world, "auto", training);
  const std::string path = fmt::format("/tmp/lockstep_streams_test.{}.{}.h5", ::getppid(), world.size());
  const std::string name = fmt::format("{}, saved, {}", training.name, text_of(capture));
  std::vector<test::Call> of_start, of_step;
  const auto file_of = [&](Backend& backend, test::RecordingBackend* device) {
    const auto communicator = communicator_of(config, world, backend);
    {
      test::SmallRun run(config, backend, *communicator);
      checkpoint::Copying copying = run.replica().copying();
      std::atomic<bool> may_wait = false;
      copying.wait = [&may_wait, wait = copying.wait] {
        may_wait.wait(false);
        wait();
      };
      checkpoint::BackgroundSaver saver(run.replica().copied_sources(), world, copying);
      for (int step = 0; step < kSavedAt; ++step) run.step(step);
      if (device) device->make_late(test::RecordingBackend::number_of(test::ReplicaProbe::copy_stream(run.replica())));
      if (device) device->recording().clear();
      saver.start(path, {{"step", kSavedAt}}, {});
      if (device) of_start = device->recording().calls();
      if (device) device->recording().clear();
      run.start(kSavedAt);
      if (device) of_step = device->recording().calls();
      run.step(kSavedAt + 1);
      may_wait = true;
      may_wait.notify_one();
      check(!saver.wait().error, world.rank(), name + ": the save failed");
      if (device) device->make_late(test::QueuedDevice::kNone);
    }
    world.barrier();
    const std::string bytes = read_file(path);
    world.barrier();
    if (world.rank() == 0) std::filesystem::remove(path);
    world.barrier();
    return bytes;
  };
  const auto host = cpu(), inner = cpu();
  const std::string expected = file_of(*host, nullptr);
  test::RecordingBackend device(*inner, uuid_of(world), capture);
  check(file_of(device, &device) == expected, world.rank(), name + ": the file has other bytes");
  check_refusals(device, world, name);
  check(count(of_start, "copy_to_host") > 0 && count(of_start, "synchronize") == 0, world.rank(),
        name + ": the host waits for a copy");
  if (capture == GraphCapture::on || config.train.shard != "none") return;
  // The compute stream waits for the copies after the backward pass, and before the update.
  const int copied = std::ranges::find(of_start | std::views::reverse, "record", &test::Call::what)->event;
  const auto wait = std::ranges::find_if(
      of_step, [&](const test::Call& call) { return call.what == "wait" && call.event == copied; });
  const auto place = [&](const char* what) { return std::ranges::find(of_step, what, &test::Call::what); };
  check(wait < place("optimizer.apply") && wait > place("conv2d.backward"), world.rank(),
        name + ": no step runs during the copy");
}

class Streams : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { static const comm::NcclHome fake; }
};

TEST_F(Streams, TheBitsAreTheSame) {
  for (const Training& training : kTrainings) the_bits_are_the_same(*test_world, training);
}

TEST_F(Streams, CallsAreInOrder) {
#ifndef LOCKSTEP_CUDA
  if (test_world->size() > 1) GTEST_SKIP() << "ranks with devices sum with NCCL, which this build lacks";
#endif
  for (const GraphCapture capture : kCaptures) calls_are_in_order(*test_world, capture);
}

TEST_F(Streams, AnEvaluationWaitsOnce) {
#ifndef LOCKSTEP_CUDA
  if (test_world->size() > 1) GTEST_SKIP() << "ranks with devices sum with NCCL, which this build lacks";
#endif
  for (const GraphCapture capture : kCaptures) an_evaluation_waits_once(*test_world, capture);
}

TEST_F(Streams, ASaveIsCopiedWhileTheNextStepRuns) {
#ifndef LOCKSTEP_CUDA
  if (test_world->size() > 1) GTEST_SKIP() << "ranks with devices sum with NCCL, which this build lacks";
#endif
  for (const GraphCapture capture : kCaptures)
    for (const Training& training : {kTrainings[0], kTrainings[3]})
      a_save_is_copied_while_the_next_step_runs(*test_world, training, capture);
}

TEST_F(Streams, TheDeviceDecidesOnTheLossScale) {
#ifndef LOCKSTEP_CUDA
  if (test_world->size() > 1) GTEST_SKIP() << "ranks with devices sum with NCCL, which this build lacks";
#endif
  for (const GraphCapture capture : kCaptures) the_device_decides_on_the_loss_scale(*test_world, capture);
}

}  // namespace
}  // namespace lockstep

// Weight gradients on a second stream, with the emulated kernels of the CUDA backend on a stand-in for a device whose
// streams are queues (test/support/recording_backend.h). The bits are those of one stream, whichever stream is late,
// both call by call and captured; without the events between the streams they are not. The plan of a large network
// gives the memory that a weight gradient reads to nothing else until that gradient is joined.
// timeout: 600
// sanitizers: no
#include "train/weight_gradient_stream.h"

#include <gtest/gtest.h>

#ifdef LOCKSTEP_CUDA
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <set>

#include "test/support/cuda_on_host/backend.h"
#include "test/support/recording_backend.h"
#include "test/train/small_run.h"

namespace lockstep {
namespace {

using test::GraphCapture;
using test::QueuedDevice;

struct Training {
  const char* name;
  void (*change)(Config&);
};
// Weight gradients that are widened once per bucket, and ones that are added in fp32; sums by a tree, and sums over
// ranks in the middle of the pass.
const Training kTrainings[] = {
    {"fp16", [](Config& config) { config.precision = Precision::fp16; }},
    {"fp32, accumulated", [](Config& config) { config.train.accumulate = 2; }},
    {"fp16, micro-batches",
     [](Config& config) {
       config.precision = Precision::fp16;
       config.train.micro_batches = 2;
       config.batch_norm.synchronize = true;
     }},
};

Config config_of(const Training& training, const std::string& stream) {
  Config config = test::small_config(8, 4);
  config.optimizer.momentum = 0.9;
  config.optimizer.learning_rate = 0.01;
  config.loss_scale.initial = 16;  // so that no step is skipped
  config.cuda.weight_gradient_stream = stream;
  training.change(config);
  return config;
}

struct Trained {
  std::vector<double> losses, norms;
  unsigned n_applied = 0;
  std::vector<float> weights;
  bool operator==(const Trained&) const = default;
};

constexpr int kSteps = 4;  // the last two are captured

template <typename AfterFirst>
Trained train(const Config& config, Backend& backend, const AfterFirst& after_first) {
  const auto world = comm::single_world();
  const auto communicator = comm::make_communicator(config.comm, *world, backend);
  test::SmallRun run(config, backend, *communicator);
  EXPECT_EQ(run.plan().uses_second_stream(), config.cuda.weight_gradient_stream == "on");
  Trained out;
  for (int step = 0; step < kSteps; ++step) {
    out.losses.push_back(run.step(step));
    out.norms.push_back(run.result().gradient_norm);
    out.n_applied += run.result().is_applied;
    if (step == 0) after_first();
  }
  out.weights = run.all_weights();
  return out;
}

Trained train_on_one_stream(const Training& training) {
  const auto backend = test::make_cuda_on_host_backend("chain");
  return train(config_of(training, "off"), *backend, [] {});
}

/// The streams on which convolutions run: that of the step, and that of weight gradients.
struct Streams {
  int step = QueuedDevice::kNone, weight_gradients = QueuedDevice::kNone;
};
Streams streams_of(test::RecordingBackend& device) {
  Streams streams;
  const std::vector<test::Call> calls = device.recording().calls();
  streams.step = std::ranges::find(calls, "optimizer.apply", &test::Call::what)->stream;
  for (const test::Call& call : calls)
    if (call.what == "conv2d.backward" && call.stream != streams.step) streams.weight_gradients = call.stream;
  return streams;
}

enum class Late { none, step, weight_gradients };

Trained train_on_two_streams(const Training& training, GraphCapture capture, Late late, bool without_events = false) {
  const auto inner = test::make_cuda_on_host_backend("chain");
  test::RecordingBackend device(*inner, "GPU-0", capture);
  const Trained trained = train(config_of(training, "on"), device, [&] {
    const Streams streams = streams_of(device);
    EXPECT_NE(streams.weight_gradients, QueuedDevice::kNone);
    if (late != Late::none) device.make_late(late == Late::step ? streams.step : streams.weight_gradients);
    if (without_events) device.ignore_events_of(late == Late::step ? streams.step : streams.weight_gradients);
  });
  for (const test::Call& call : device.recording().calls())
    EXPECT_FALSE(call.what.starts_with("refused")) << training.name << ": " << call.what;
  return trained;
}

TEST(WeightGradientStream, TheBitsAreThoseOfOneStream) {
  for (const Training& training : kTrainings) {
    const Trained expected = train_on_one_stream(training);
    ASSERT_EQ(expected.n_applied, unsigned{kSteps}) << training.name << ": steps have no effect on the weights";
    EXPECT_EQ(train_on_two_streams(training, GraphCapture::off, Late::none), expected) << training.name;
    EXPECT_EQ(train_on_two_streams(training, GraphCapture::on, Late::none), expected) << training.name << ", captured";
    EXPECT_EQ(train_on_two_streams(training, GraphCapture::off, Late::weight_gradients), expected)
        << training.name << ": something reads a weight gradient, or overwrites what it reads, before it is joined";
    EXPECT_EQ(train_on_two_streams(training, GraphCapture::off, Late::step), expected)
        << training.name << ": a weight gradient runs before what it reads is complete";
  }
}

TEST(WeightGradientStream, TheBitsDependOnTheEvents) {
  const Trained expected = train_on_one_stream(kTrainings[0]);
  EXPECT_NE(train_on_two_streams(kTrainings[0], GraphCapture::off, Late::weight_gradients, true), expected);
  EXPECT_NE(train_on_two_streams(kTrainings[0], GraphCapture::off, Late::step, true), expected);
}

/// ResNet-50 in fp16 on an H200, as `lockstep plan` plans it.
class PlannedResNet50 {
 public:
  explicit PlannedResNet50(const std::string& stream) : backend_(make_planning_backend("h200")) {
    Config config = test::resnet50_config(224, 256);
    config.cuda.weight_gradient_stream = stream;
    task_ = tasks::make_image_classification(config, test::synthetic_set(config), nullptr);
    plan_ = std::make_unique<train::StepPlan>(config, *task_, train::batch_shape(config, 0, 1), *backend_,
                                              comm::Topology{});
  }
  const train::StepPlan& plan() const { return *plan_; }
  const graph::Graph& graph() const { return *plan_->largest().graph; }

 private:
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<tasks::Task> task_;
  std::unique_ptr<train::StepPlan> plan_;
};

bool share_memory(const graph::TensorInfo& a, const graph::TensorInfo& b) {
  return a.offset < b.offset + b.size_bytes && b.offset < a.offset + a.size_bytes;
}
bool lives_in(const graph::TensorInfo& tensor, std::size_t begin, std::size_t end) {
  return std::ranges::any_of(tensor.live, [&](const graph::LiveInterval& live) {
    return live.first < static_cast<int>(end) && live.last >= static_cast<int>(begin);
  });
}

TEST(WeightGradientStream, WhatIsReadStaysInMemoryUntilTheJoin) {
  constexpr std::size_t kConvolutions = 53, kForksInFlight = 2;
  const PlannedResNet50 planned("on"), one_stream("off");
  const graph::Graph& graph = planned.graph();
  const auto& forks = graph.forks();
  ASSERT_EQ(forks.size(), kConvolutions);
  for (std::size_t f = 0; f < forks.size(); ++f) {
    const bool is_near_end = f + kForksInFlight >= forks.size();
    EXPECT_LE(forks[f].end, is_near_end ? graph.order().entries().size() : forks[f + kForksInFlight].begin);
    EXPECT_GE(forks[f].reads.size(), 2u);  // the input, and the gradient of the output
    for (const graph::TensorId read : forks[f].reads) {
      const graph::TensorInfo& tensor = graph.memory().info(read);
      EXPECT_TRUE(lives_in(tensor, forks[f].end - 1, forks[f].end)) << tensor.name;
      for (const graph::TensorInfo& other : graph.memory().tensors())
        EXPECT_FALSE(&other != &tensor && share_memory(tensor, other) && lives_in(other, forks[f].begin, forks[f].end))
            << other.name << " is in the memory of " << tensor.name;
    }
  }
  const train::MemoryReport two = planned.plan().memory(), one = one_stream.plan().memory();
  const auto print = [](const char* name, std::size_t before, std::size_t after) {
    std::printf("%-18s %10.1f MiB on one stream, %10.1f MiB on two\n", name, static_cast<double>(before) / (1 << 20),
                static_cast<double>(after) / (1 << 20));
  };
  print("activations", one.activations, two.activations);
  print("workspace", one.workspace, two.workspace);
  print("second workspace", one.second_workspace, two.second_workspace);
  print("total", one.total(), two.total());
  EXPECT_EQ(one.second_workspace, 0u);
  EXPECT_GT(two.second_workspace, 0u);
  EXPECT_LE(two.workspace, one.workspace);
}

TEST(WeightGradientStream, IsChosenByTimeOnce) {
  const PlannedResNet50 planned("auto");
  const auto choose = [&](Algorithms* algorithms, double off, double on) {
    return train::choose_weight_gradient_stream(planned.plan(), algorithms,
                                                [&](const std::string& value) { return value == "on" ? on : off; });
  };
  EXPECT_EQ(choose(nullptr, 2, 1), "off");
  Algorithms algorithms;
  EXPECT_EQ(choose(&algorithms, 2, 1), "off") << "nothing is timed yet";
  EXPECT_FALSE(algorithms.is_complete());
  algorithms.enable_timing();
  EXPECT_EQ(choose(&algorithms, 2, 1), "on");
  EXPECT_TRUE(algorithms.is_complete());
  algorithms.disable_timing();
  EXPECT_EQ(choose(&algorithms, 1, 2), "on") << "the choice is stored";
  Algorithms others;
  others.enable_timing();
  EXPECT_EQ(choose(&others, 1, 1), "off") << "a second stream has to be faster";
  Algorithms refused;
  refused.enable_timing();
  const auto without_memory = [](const std::string& value) {
    require(value == "off", ErrorCode::out_of_memory, "too little memory");
    return 1.0;
  };
  EXPECT_EQ(train::choose_weight_gradient_stream(planned.plan(), &refused, without_memory), "off");
}

TEST(WeightGradientStream, StepsAreTimed) {
  const auto backend = test::make_cuda_on_host_backend("chain");
  Config config = config_of(kTrainings[2], "on");
  const auto task = tasks::make_image_classification(config, test::synthetic_set(config), nullptr);
  const double seconds = train::seconds_of_step(config, *task, 2, *backend);
  EXPECT_TRUE(std::isfinite(seconds));
  EXPECT_GT(seconds, 0);
  EXPECT_NO_THROW((void)backend->allocate(64, "after the timing"));
}

TEST(WeightGradientStream, HasNoEffectOnCpus) {
  const auto backend = make_backend({.device = "cpu", .threads = 1});
  const auto world = comm::single_world();
  const Config config = config_of(kTrainings[1], "on");
  const auto communicator = comm::make_communicator(config.comm, *world, *backend);
  test::SmallRun run(config, *backend, *communicator);
  EXPECT_FALSE(run.plan().uses_second_stream());
  EXPECT_EQ(run.plan().memory().second_workspace, 0u);
}

}  // namespace
}  // namespace lockstep
#endif

// timeout: 400
// sanitizers: no
// Whole networks: the cpu backend, which works in passes, and the CUDA backend's ops on the host, compared with the
// double-precision reference, which fuses everything, on the same graph. And what a step must not do: allocate, or
// depend on memory reuse.
#include "train/replica.h"
#include "test/support/named_tensors.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <set>

#include "config/parameter_groups.h"
#include "kernels/cpu/base/simd.h"
#include "lockstep/ops/parameter_segment.h"
#include "test/reference/backend.h"
#include "test/support/cuda_on_host/backend.h"
#include "test/train/small_run.h"

namespace lockstep {
namespace {

struct Case {
  const char* name;
  int depth;
  const char* stem;
  int image_size;
  std::int64_t batch;
  int accumulate;
  bool synchronize;
  enum class Device { cpu, cuda_on_host } device = Device::cpu;
  std::vector<std::string> freeze{};
};

std::unique_ptr<Backend> backend_of([[maybe_unused]] Case::Device device) {
#ifdef LOCKSTEP_CUDA
  if (device == Case::Device::cuda_on_host) return test::make_cuda_on_host_backend();
#endif
  return make_backend({.device = "cpu", .threads = 1});
}

/// Fifty layers with their initial weights are chaotic: gradients grow block by block, and flipped ReLU decisions move
/// them by several per cent whatever the arithmetic (PyTorch's fp32 too). With the last norm of each block at a
/// quarter, the network is well conditioned, and every path still carries gradient.
void calm(train::Replica& replica) {
  checkpoint::ModelFile file{.path = "calm", .tensors = test::kept(replica.named_tensors(0))};
  for (checkpoint::NamedTensor& t : file.tensors)
    if (t.name.ends_with("bn3.weight"))
      t = test::edited(t, [](std::vector<float>& values) { std::ranges::fill(values, 0.25f); });
  replica.load_named(file, *comm::single_world());
}

class WholeNetwork : public testing::TestWithParam<Case> {};

TEST_P(WholeNetwork, GradientsAgreeWithTheReference) {
  const Case& c = GetParam();
  Config config = test::small_config(c.image_size, c.batch);
  config.model.depth = c.depth;
  config.model.width = 32;  // with 16, flipped ReLU decisions count ten times as much
  config.model.stem = c.stem;
  config.train.accumulate = c.accumulate;
  config.batch_norm.synchronize = c.synchronize;
  config.train.freeze = c.freeze;
  const auto world = comm::single_world();
  const auto backend = backend_of(c.device);
  const auto reference = reference::make_reference_backend();
  const auto communicator = comm::make_communicator(config.comm, *world, *backend);
  const auto reference_communicator = comm::make_communicator(config.comm, *world, *reference);
  test::SmallRun ours(config, *backend, *communicator);
  test::SmallRun exact(config, *reference, *reference_communicator);
  calm(ours.replica());
  calm(exact.replica());
  EXPECT_EQ(ours.all_weights(), exact.all_weights());  // layouts lose nothing
  const double loss = ours.step(0), exact_loss = exact.step(0);
  // Rounding of fp32 activations through 50 layers; measured: 1e-7 for the loss and 1e-6 to 2e-5 for gradients, mostly
  // from ReLU and max-pool decisions that flip. A wrong path (a missing branch, a mask) is off by 0.1 or more.
  EXPECT_NEAR(loss, exact_loss, 3e-6 * exact_loss);
  EXPECT_LT(test::relative_distance(ours.all_gradients(), exact.all_gradients()), 2e-4);
  EXPECT_LT(test::relative_distance(ours.all_weights(), exact.all_weights()), 2e-5);
  EXPECT_NEAR(ours.result().gradient_norm, exact.result().gradient_norm, 1e-4 * exact.result().gradient_norm);
  const auto ours_named = ours.replica().named_tensors(1), exact_named = exact.replica().named_tensors(1);
  for (std::size_t i = 0; i < ours_named.size(); ++i) {
    if (!ours_named[i].name.ends_with("running_var") && !ours_named[i].name.ends_with("running_mean")) continue;
    if (ours_named[i].values() == exact_named[i].values()) continue;  // gradients of a frozen norm: zeros
    EXPECT_LT(test::relative_distance(ours_named[i].values(), exact_named[i].values()), 1e-4) << ours_named[i].name;
  }
}

// The first trained layer reads a normalised input that is stored; further on, a norm between trained layers is frozen,
// and so is one branch of a block.
const std::vector<std::string> kFrozen{"conv1",         "bn1", "layer1", "layer2.1.bn1", "layer3.0.downsample",
                                       "layer4.1.conv2"};

// Images are large enough that the last stage has 2x2 pixels: a batch norm over only a few values divides by variances
// near zero, and then rounding alone changes gradients by several per cent.
INSTANTIATE_TEST_SUITE_P(Networks, WholeNetwork,
                         testing::Values(Case{"ResNet18Cifar", 18, "cifar", 16, 4, 1, false},
                                         Case{"ResNet18Frozen", 18, "cifar", 16, 4, 1, true, Case::Device::cpu,
                                              kFrozen},
                                         Case{"ResNet18Imagenet", 18, "imagenet", 48, 4, 1, false},
                                         Case{"ResNet18MicroBatches", 18, "cifar", 16, 5, 2, false},
                                         Case{"ResNet18Synchronised", 18, "cifar", 16, 4, 1, true},
                                         Case{"ResNet34Cifar", 34, "cifar", 16, 4, 1, false},
                                         Case{"ResNet50Imagenet", 50, "imagenet", 48, 6, 1, false}),
                         [](const auto& info) { return info.param.name; });

#ifdef LOCKSTEP_CUDA
constexpr auto kOnHost = Case::Device::cuda_on_host;
INSTANTIATE_TEST_SUITE_P(CudaOnHost, WholeNetwork,
                         testing::Values(Case{"ResNet18Cifar", 18, "cifar", 16, 4, 1, false, kOnHost},
                                         Case{"ResNet18Imagenet", 18, "imagenet", 48, 4, 1, false, kOnHost},
                                         Case{"ResNet18MicroBatches", 18, "cifar", 16, 5, 2, true, kOnHost},
                                         Case{"ResNet18Frozen", 18, "cifar", 16, 4, 1, false, kOnHost, kFrozen},
                                         Case{"ResNet50Imagenet", 50, "imagenet", 48, 6, 1, false, kOnHost}),
                         [](const auto& info) { return info.param.name; });
#endif

/// Whatever is frozen, a short step along the negative gradient lowers the loss by the learning rate times the squared
/// norm of the gradient: no path to a trained parameter is missing, and no path that leads only to frozen ones is
/// counted. Frozen parameters and the statistics of frozen norms do not change.
TEST(Replica, TrainsWhatIsNotFrozen) {
  const std::vector<std::vector<std::string>> cases{{},
                                                    kFrozen,
                                                    {"conv1", "bn1", "layer1"},
                                                    {"conv1", "bn1", "layer1", "layer2", "layer3", "layer4"},
                                                    {"bn1", "*.bn*", "*.downsample.1"},
                                                    {"conv1", "*.conv*", "fc"},
                                                    {"conv1", "bn1", "layer1", "layer2.0.conv*", "layer2.0.bn*"},
                                                    {"*.downsample"}};
  for (const std::vector<std::string>& freeze : cases)
    for (const char* stem : {"cifar", "imagenet"}) {
      SCOPED_TRACE(std::string(stem) + (freeze.empty() ? "" : ", " + freeze.back()));
      Config config = test::small_config(32, 8);
      config.model.stem = stem;
      config.data.augment = {};
      config.data.synthetic_samples = 8;
      config.train.label_smoothing = 0;
      config.train.freeze = freeze;
      config.optimizer.momentum = 0;
      config.optimizer.weight_decay = 0;
      const auto world = comm::single_world();
      const auto cpu = make_backend({.device = "cpu", .threads = 1});
      const auto communicator = comm::make_communicator(config.comm, *world, *cpu);
      double loss = 0, squared_norm = 0;
      {
        config.optimizer.learning_rate = 0;
        test::SmallRun still(config, *cpu, *communicator);
        loss = still.step(0);
        squared_norm = still.result().gradient_norm * still.result().gradient_norm;
      }
      config.optimizer.learning_rate = 0.002 * loss / squared_norm;
      test::SmallRun run(config, *cpu, *communicator);
      const auto before = test::kept(run.replica().named_tensors(0));
      run.step(0);
      const auto after = run.replica().named_tensors(0);
      EXPECT_NEAR((loss - run.step(1)) / (0.002 * loss), 1, 0.1);  // curvature, and ReLU decisions that flip
      for (std::size_t i = 0; i < before.size(); ++i) {
        const bool is_frozen = std::ranges::any_of(
            freeze, [&](const std::string& pattern) { return config::selects(pattern, before[i].name); });
        EXPECT_TRUE(!is_frozen || before[i].values() == after[i].values()) << before[i].name << " is frozen";
        const bool is_weight = before[i].name.ends_with(".weight");
        EXPECT_TRUE(is_frozen || !is_weight || before[i].values() != after[i].values())
            << before[i].name << " is trained";
      }
      const auto& table = run.plan().parameters();
      EXPECT_EQ(run.plan().optimizer().n_elements, table.n_trainable());
      EXPECT_EQ(freeze.empty(), table.n_canonical() == table.n_canonical_trainable());
    }
}

TEST(Replica, TheBackwardPassStopsAtTheFirstTrainedLayer) {
  Config config = test::small_config(16, 8);
  const auto world = comm::single_world();
  const auto cpu = make_backend({.device = "cpu", .threads = 1});
  const auto communicator = comm::make_communicator(config.comm, *world, *cpu);
  const std::size_t unfrozen = test::SmallRun(config, *cpu, *communicator).plan().memory().activations;
  config.train.freeze = {"conv1", "bn1", "layer1", "layer2", "layer3.0"};
  test::SmallRun run(config, *cpu, *communicator);
  const graph::Graph& graph = *run.plan().largest().graph;
  std::set<std::string> backward;
  for (const graph::Entry& entry : graph.order().entries())
    if (entry.phase == graph::Phase::backward)
      backward.insert(graph.nodes()[static_cast<std::size_t>(entry.node)]->name());
  EXPECT_TRUE(backward.contains("layer3.1.conv1"));
  for (const std::string& name : backward)
    EXPECT_FALSE(name.starts_with("layer1") || name.starts_with("layer2") || name.starts_with("layer3.0") ||
                 name == "bn1" || name == "conv1")
        << name;
  const train::MemoryReport memory = run.plan().memory();
  EXPECT_LT(memory.gradients, memory.parameters);
  EXPECT_LT(memory.activations, unfrozen);
}

TEST(Replica, FreezingIsChecked) {
  const auto message_of = [](const std::vector<std::string>& freeze) -> std::string {
    Config config = test::small_config(8, 8);
    config.train.freeze = freeze;
    const auto world = comm::single_world();
    const auto cpu = make_backend({.device = "cpu", .threads = 1});
    const auto communicator = comm::make_communicator(config.comm, *world, *cpu);
    try {
      const test::SmallRun run(config, *cpu, *communicator);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::config_invalid);
      return error.what();
    }
    return "no error";
  };
  EXPECT_NE(message_of({"layer1", "con1"}).find("no parameter matches con1; the nearest names are conv1"),
            std::string::npos);
  EXPECT_NE(message_of({"*"}).find("nothing would be trained"), std::string::npos);
  EXPECT_NE(message_of({"fc.bias"}).find("selects fc.bias and not fc.weight"), std::string::npos);
  EXPECT_NE(message_of({"*.weight"}).find("freeze both or neither"), std::string::npos);
}

/// Class weights multiply the training loss, whose mean divides by the sum of the weights.
TEST(Replica, ClassWeights) {
  const auto run_with = [](const std::vector<double>& weights, std::vector<float>& gradients) {
    Config config = test::small_config(8, 12);
    config.data.augment = {};
    config.train.class_weights = weights;
    config.train.accumulate = 2;
    config.model.classes = 3;
    const auto world = comm::single_world();
    const auto cpu = make_backend({.device = "cpu", .threads = 1});
    const auto communicator = comm::make_communicator(config.comm, *world, *cpu);
    test::SmallRun run(config, *cpu, *communicator);
    const double loss = run.step(0);
    gradients = run.all_gradients();
    for (float& gradient : gradients) gradient *= static_cast<float>(12 / run.result().sums.weight);
    EXPECT_EQ(run.result().sums.count, 12);
    return loss;
  };
  std::vector<float> plain, alike, unused;
  const double loss = run_with({}, plain);
  EXPECT_NEAR(run_with({0.5, 0.5, 0.5}, alike), loss, 1e-6 * loss);  // equal weights change nothing
  EXPECT_LT(test::relative_distance(alike, plain), 1e-5);
  // There are 4 samples per class, and the sum of losses is linear in the weights.
  const double of_first = run_with({1, 0, 0}, unused), of_last = run_with({0, 0, 2}, unused);
  EXPECT_NEAR(run_with({1, 0, 3}, unused), (of_first + 3 * of_last) / 4, 1e-6);
  EXPECT_GT(std::abs(of_first - of_last), 1e-3);
}

TEST(Replica, OverfitsOneBatch) {
  Config config = test::small_config(8, 16);
  config.data.augment = {};
  config.train.label_smoothing = 0;
  config.optimizer.learning_rate = 0.05;
  config.data.synthetic_samples = 16;
  const auto world = comm::single_world();
  const auto cpu = make_backend({.device = "cpu", .threads = 1});
  const auto communicator = comm::make_communicator(config.comm, *world, *cpu);
  test::SmallRun run(config, *cpu, *communicator);
  const double first = run.step(0);
  double last = first;
  for (int step = 1; step < 30; ++step) last = run.step(step);
  EXPECT_GT(first, 1.0);
  EXPECT_LT(last, 0.02);
}

/// A step of SGD moves each parameter by the learning rate of its group, which is the first group that selects it.
TEST(Replica, GroupsOfParametersHaveTheirOwnLearningRateAndDecay) {
  const auto weights_after = [](const std::vector<std::string>& groups, double learning_rate) {
    Config config = test::small_config(8, 8);
    config.optimizer.momentum = 0;
    config.optimizer.weight_decay = 0.5;
    config.optimizer.learning_rate = learning_rate;
    config.optimizer.groups = groups;
    const auto world = comm::single_world();
    const auto cpu = make_backend({.device = "cpu", .threads = 1});
    const auto communicator = comm::make_communicator(config.comm, *world, *cpu);
    test::SmallRun run(config, *cpu, *communicator);
    std::map<std::string, std::vector<float>> weights;
    run.step(0);
    for (const char* name : {"fc.weight", "conv1.weight", "layer1.0.bn1.weight"})
      weights[name] = test::ReplicaProbe::parameter(run.replica(), name);
    return weights;
  };
  const std::vector<std::string> groups{"fc learning_rate=0.5 weight_decay=0", "layer1.* learning_rate=0",
                                        "conv1 weight_decay=0.25", "* learning_rate=7"};
  auto mixed = weights_after(groups, 0.125);
  EXPECT_EQ(mixed["fc.weight"], weights_after({"* weight_decay=0"}, 0.5)["fc.weight"]);
  EXPECT_EQ(mixed["conv1.weight"], weights_after({"conv1 weight_decay=0.25"}, 0.125)["conv1.weight"]);
  EXPECT_EQ(mixed["layer1.0.bn1.weight"], std::vector<float>(16, 1.0f));
  EXPECT_NE(mixed["conv1.weight"], weights_after({}, 0.125)["conv1.weight"]);
  try {
    weights_after({"* weight_decay=0.25", "conv1 learning_rate=7"}, 0.125);
    ADD_FAILURE() << "a group whose parameters all belong to another one is accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::config_conflict);
  }
  try {
    weights_after({"layr1.* weight_decay=0"}, 0.125);
    ADD_FAILURE() << "a pattern without parameters is accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::config_invalid);
    EXPECT_NE(std::string(error.what()).find("no parameter matches layr1.*; the nearest names are layer1"),
              std::string::npos)
        << error.what();
  }
}

TEST(Replica, GradientsOfAccumulatedMicroBatchesAreTheirMean) {
  const auto gradients_of = [](std::int64_t global_batch, int accumulate, std::int64_t step) {
    Config config = test::small_config(8, global_batch);
    config.data.augment = {};
    config.train.accumulate = accumulate;
    const auto world = comm::single_world();
    const auto cpu = make_backend({.device = "cpu", .threads = 1});
    const auto communicator = comm::make_communicator(config.comm, *world, *cpu);
    test::SmallRun run(config, *cpu, *communicator);
    run.step(step);
    return run.all_gradients();
  };
  const std::vector<float> accumulated = gradients_of(12, 3, 0);
  std::vector<float> mean(accumulated.size());
  for (int micro_batch = 0; micro_batch < 3; ++micro_batch) {
    const std::vector<float> gradients = gradients_of(4, 1, micro_batch);  // for the same samples
    for (std::size_t i = 0; i < mean.size(); ++i) mean[i] += gradients[i] / 3;
  }
  EXPECT_LT(test::relative_distance(accumulated, mean),
            cpu::isa() == cpu::Isa::avx512 ? 1e-6 : 2e-6);  // fp32 rounding of three sums
}

TEST(Replica, ClippingBoundsTheUpdate) {
  Config config = test::small_config(8, 8);
  config.optimizer.momentum = 0;
  config.optimizer.weight_decay = 0;
  config.optimizer.learning_rate = 1;
  config.train.clip_norm = 0.25;
  const auto world = comm::single_world();
  const auto cpu = make_backend({.device = "cpu", .threads = 1});
  const auto communicator = comm::make_communicator(config.comm, *world, *cpu);
  test::SmallRun run(config, *cpu, *communicator);
  const std::vector<float> before = run.all_weights();
  run.step(0);
  const std::vector<float> after = run.all_weights();
  double moved = 0;
  for (std::size_t i = 0; i < before.size(); ++i) moved += std::pow(static_cast<double>(after[i]) - before[i], 2);
  EXPECT_GT(run.result().gradient_norm, 0.25);
  EXPECT_NEAR(std::sqrt(moved), 0.25, 1e-4);  // fp32 rounding of weights near 1
}

/// Parameters, optimizer state and running statistics, as in a checkpoint.
std::vector<std::vector<float>> whole_state(const train::Replica& replica) {
  std::vector<std::vector<float>> out;
  for (const checkpoint::TensorSource& source : replica.sources()) {
    out.emplace_back(static_cast<std::size_t>(source.shape.n_elements()));
    source.read(out.back());
  }
  return out;
}

TEST(Replica, ASkippedStepChangesNothing) {
  Config config = test::small_config(8, 8);
  config.train.clip_norm = 1;
  const auto world = comm::single_world();
  const auto cpu = make_backend({.device = "cpu", .threads = 1});
  const auto communicator = comm::make_communicator(config.comm, *world, *cpu);
  test::SmallRun run(config, *cpu, *communicator);
  run.step(0);
  EXPECT_EQ(run.result().is_applied, 1u);
  const auto before = whole_state(run.replica());
  run.step(1, {}, 0.01f);  // its loss is above the limit
  EXPECT_EQ(run.result().is_applied, 0u);
  EXPECT_TRUE(std::isfinite(run.result().gradient_norm));
  EXPECT_EQ(whole_state(run.replica()), before);
  run.step(1);
  EXPECT_EQ(run.result().is_applied, 1u);
  EXPECT_NE(whole_state(run.replica()), before);

  for (const checkpoint::TensorTarget& target : run.replica().targets())
    if (target.path == "/parameters/fc.bias")
      target.write(std::vector<float>(target.shape.n_elements(), std::numeric_limits<float>::infinity()));
  const std::uint64_t hash = run.replica().hash();
  run.step(2);
  EXPECT_EQ(run.result().is_applied, 0u);
  EXPECT_FALSE(std::isfinite(run.result().sums.loss));
  EXPECT_EQ(run.replica().hash(), hash);
}

/// A communicator whose job can be lost.
class LosingCommunicator final : public Communicator {
 public:
  explicit LosingCommunicator(std::unique_ptr<Communicator> inner) : inner_(std::move(inner)) {}
  std::string describe() const override { return inner_->describe(); }
  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  std::unique_ptr<Memory> allocate(std::size_t size_bytes, const std::string& purpose) override {
    return inner_->allocate(size_bytes, purpose);
  }
  void exchange_async(const Exchange& exchange, const Event& ready, Event& done, const std::string& label) override {
    inner_->exchange_async(exchange, ready, done, label);
  }
  std::unique_ptr<Event> make_event() override { return inner_->make_event(); }
  void check() override { require(!is_lost, ErrorCode::comm_rank_lost, "a rank is lost"); }

  bool is_lost = false;

 private:
  std::unique_ptr<Communicator> inner_;
};

// A captured step calls no function of the communicator, so a lost rank is noticed before and after the step.
TEST(Replica, UsesNoResultsOfALostJob) {
  const Config config = test::small_config(8, 8);
  const auto world = comm::single_world();
  const auto cpu = make_backend({.device = "cpu", .threads = 1});
  LosingCommunicator communicator(comm::make_communicator(config.comm, *world, *cpu));
  test::SmallRun run(config, *cpu, communicator);
  run.step(0);
  const auto before = whole_state(run.replica());
  communicator.is_lost = true;
  EXPECT_THROW(run.start(1), Error);
  EXPECT_EQ(whole_state(run.replica()), before) << "the step began";
  communicator.is_lost = false;
  run.start(1);
  communicator.is_lost = true;
  EXPECT_THROW((void)run.replica().result(0), Error);
  EXPECT_THROW((void)run.replica().end_evaluation(), Error);
  EXPECT_THROW((void)run.replica().hash(), Error);
  EXPECT_THROW(run.replica().prepare_samples(), Error);
}

/// Runs fifteen steps on one batch; `look` is called with the run before the first step.
void expect_loss_to_fall(const std::string& optimizer, double learning_rate,
                         const std::function<void(test::SmallRun&)>& look = {}) {
  Config config = test::small_config(8, 16);
  config.optimizer.kind = optimizer;
  config.optimizer.learning_rate = learning_rate;
  config.data.augment = {};
  config.data.synthetic_samples = 16;
  const auto world = comm::single_world();
  const auto cpu = make_backend({.device = "cpu", .threads = 1});
  const auto communicator = comm::make_communicator(config.comm, *world, *cpu);
  test::SmallRun run(config, *cpu, *communicator);
  if (look) look(run);
  const double first = run.step(0);
  double last = first;
  for (int step = 1; step < 15; ++step) last = run.step(step);
  EXPECT_LT(last, 0.7 * first);
}

TEST(Replica, AdamWDecreasesTheLoss) { expect_loss_to_fall("adamw", 1e-3); }

TEST(Replica, LarsDecreasesTheLoss) {
  expect_loss_to_fall("lars", 8, [](test::SmallRun& run) {
    for (const ParameterSegment& segment : run.plan().optimizer().segments)
      EXPECT_EQ(segment.decay, segment.n_elements > 128) << "norms and biases have neither decay nor a trust ratio";
  });
}

}  // namespace
}  // namespace lockstep

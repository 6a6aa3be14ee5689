// A model with a tied, a frozen and a split parameter is trained, saved, and resumed with the same bits. And the
// weights that ops read in bf16 are always the fp32 masters, rounded.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "checkpoint/checkpoint.h"
#include "comm/world.h"
#include "layers/layers.h"
#include "test/checkpoint/support.h"
#include "test/reference/backend.h"
#include "test/support/cuda_on_host/backend.h"
#include "test/support/recording_backend.h"
#include "test/support/tensor.h"
#include "test/train/small_run.h"

namespace lockstep {
namespace {

constexpr std::int64_t kFeatures = 16;

/// Image classification with a model other than those of the configuration.
class OwnModel final : public tasks::Task {
 public:
  explicit OwnModel(std::unique_ptr<tasks::Task> images, int image_size)
      : images_(std::move(images)), image_size_(image_size) {}

  void open_train_set() override { images_->open_train_set(); }
  void open_validation_set() override { images_->open_validation_set(); }
  std::shared_ptr<const data::Dataset> train_set() const override { return images_->train_set(); }
  std::shared_ptr<const data::Dataset> validation_set() const override { return images_->validation_set(); }
  std::string describe_samples() const override { return images_->describe_samples(); }
  double nominal_count(std::int64_t n_samples) const override { return images_->nominal_count(n_samples); }
  float statistics_momentum() const override { return images_->statistics_momentum(); }
  std::span<const tasks::Measure> measures() const override { return images_->measures(); }
  const tasks::CountUnit& count_unit() const override { return images_->count_unit(); }
  const tasks::Measure& quality_measure() const override { return images_->quality_measure(); }
  std::unique_ptr<tasks::Tally> make_tally() const override { return images_->make_tally(); }
  tasks::ModelName model_name() const override { return images_->model_name(); }
  nlohmann::ordered_json model_stamp() const override { return images_->model_stamp(); }
  nlohmann::ordered_json inference_stamp() const override { return images_->inference_stamp(); }
  std::vector<std::string> adopt(const nlohmann::json& inference, const std::string& source) override {
    return images_->adopt(inference, source);
  }
  bool is_head(const std::string& parameter) const override { return images_->is_head(parameter); }

  /// A frozen convolution, two layers with one matrix, and a head that files store as three layers.
  graph::ActivationId wire(graph::Graph& graph, const tasks::Wiring& wiring) const override {
    graph::ActivationId x = layers::image_input(
        graph, {.height = image_size_, .width = image_size_, .channels = 3, .mean = {0, 0, 0}, .stddev = {1, 1, 1}},
        wiring.fields.at(data::kImageField), wiring.fields.at(data::kSampleIdField));
    x = layers::convolution(graph, x, "conv", {.out_channels = kFeatures, .trainable = false});
    x = layers::relu(graph, layers::batch_norm(graph, x, "bn", {}));
    x = layers::global_average_pool(graph, x, "pool");
    for (const char* name : {"first", "second"})
      x = layers::linear(graph, x, name, {.out_features = kFeatures, .bias = false, .weight = "shared"});
    x = layers::linear(graph, x, "head", {.out_features = 10, .parts = {{"q", 5}, {"k", 3}, {"v", 2}}});
    layers::cross_entropy(graph, x, wiring.fields.at(data::kLabelField), wiring.sums_offset);
    return x;
  }

 private:
  std::unique_ptr<tasks::Task> images_;
  int image_size_;
};

Config config_of_test() {
  Config config = test::small_config(8, 8);
  config.data.augment = {};
  config.optimizer.momentum = 0.9;
  config.optimizer.learning_rate = 0.05;
  config.train.clip_norm = 1;
  return config;
}

using MakeBackend = std::unique_ptr<Backend> (*)();
std::unique_ptr<Backend> make_cpu() { return make_backend({.device = "cpu", .threads = 1}); }

class Parameters : public testing::Test {
 protected:
  /// Starts a run with its own backend, since a run forbids further allocations.
  std::unique_ptr<test::SmallRun> start(MakeBackend make) {
    backends_.push_back(make());
    communicators_.push_back(comm::make_communicator(config_.comm, *world_, *backends_.back()));
    const auto set = test::synthetic_set(config_);
    return std::make_unique<test::SmallRun>(
        config_, *backends_.back(), *communicators_.back(),
        std::make_unique<OwnModel>(tasks::make_image_classification(config_, set, nullptr), config_.data.image_size));
  }

  Config config_ = config_of_test();
  std::unique_ptr<World> world_ = comm::single_world();
  std::vector<std::unique_ptr<Backend>> backends_;
  std::vector<std::unique_ptr<Communicator>> communicators_;
};

TEST_F(Parameters, ThatAreTiedFrozenOrSplitAreTrainedAndResumed) {
  for (const auto& [make, precision] :
       {std::pair(MakeBackend{reference::make_reference_backend}, Precision::fp32),
        std::pair(MakeBackend{make_cpu}, Precision::fp32), std::pair(MakeBackend{make_cpu}, Precision::bf16)}) {
    config_.precision = precision;
    const checkpoint::test::ScratchDirectory scratch;
    const auto whole = start(make), interrupted = start(make);
    const std::vector<float> conv = test::ReplicaProbe::parameter(whole->replica(), "conv.weight");
    const std::vector<float> shared = test::ReplicaProbe::parameter(whole->replica(), "shared");
    EXPECT_TRUE(std::ranges::any_of(conv, [](float w) { return w != 0; }));
    for (int step = 0; step < 5; ++step) whole->step(step);
    EXPECT_EQ(test::ReplicaProbe::parameter(whole->replica(), "conv.weight"), conv);
    EXPECT_NE(test::ReplicaProbe::parameter(whole->replica(), "shared"), shared);

    for (int step = 0; step < 3; ++step) interrupted->step(step);
    checkpoint::save(scratch.file("a.h5"), interrupted->replica().sources(), {{"step", 3}}, *world_);
    std::vector<std::string> paths;
    for (const checkpoint::NamedTensor& t : checkpoint::load_all(scratch.file("a.h5")))
      paths.push_back(t.name + " " + t.shape.text());
    EXPECT_EQ(paths, (std::vector<std::string>{"/optimizer/momentum/bn.bias (16)",
                                               "/optimizer/momentum/bn.weight (16)",
                                               "/optimizer/momentum/k.bias (3)",
                                               "/optimizer/momentum/k.weight (3, 16)",
                                               "/optimizer/momentum/q.bias (5)",
                                               "/optimizer/momentum/q.weight (5, 16)",
                                               "/optimizer/momentum/shared (16, 16)",
                                               "/optimizer/momentum/v.bias (2)",
                                               "/optimizer/momentum/v.weight (2, 16)",
                                               "/parameters/bn.bias (16)",
                                               "/parameters/bn.weight (16)",
                                               "/parameters/conv.weight (16, 3, 3, 3)",
                                               "/parameters/k.bias (3)",
                                               "/parameters/k.weight (3, 16)",
                                               "/parameters/q.bias (5)",
                                               "/parameters/q.weight (5, 16)",
                                               "/parameters/shared (16, 16)",
                                               "/parameters/v.bias (2)",
                                               "/parameters/v.weight (2, 16)",
                                               "/statistics/bn.running_mean (16)",
                                               "/statistics/bn.running_var (16)"}));

    const auto resumed = start(make);
    checkpoint::load(scratch.file("a.h5"), resumed->replica().targets());
    for (int step = 3; step < 5; ++step) resumed->step(step);
    EXPECT_EQ(resumed->all_weights(), whole->all_weights());
    EXPECT_EQ(resumed->replica().hash(), whole->replica().hash());
  }
}

TEST_F(Parameters, ThatAreSplitAreExportedAndImportedAsTheirParts) {
  const auto run = start(make_cpu), other = start(make_cpu);
  for (int step = 0; step < 2; ++step) run->step(step);
  const checkpoint::ModelFile file{.path = "trained", .tensors = run->replica().named_tensors(2)};
  const auto find = [&](const char* name) {
    return *std::ranges::find(file.tensors, std::string(name), &checkpoint::NamedTensor::name);
  };
  const std::vector<float> head = test::ReplicaProbe::parameter(run->replica(), "head.weight");
  std::vector<float> joined;
  for (const char* name : {"q.weight", "k.weight", "v.weight"}) {
    const std::vector<float> values = find(name).values();
    joined.insert(joined.end(), values.begin(), values.end());
  }
  EXPECT_EQ(joined, head);
  EXPECT_TRUE(other->replica().load_named(file, *world_).empty());
  EXPECT_EQ(other->all_weights(), run->all_weights());
}

TEST_F(Parameters, ThatAreFrozenHaveNoGradientAndNoOptimizerState) {
  const auto run = start(make_cpu);
  const train::MemoryReport memory = run->plan().memory();
  const graph::ParameterTable& table = run->plan().parameters();
  EXPECT_EQ(memory.parameters, table.n_total() * sizeof(float));
  EXPECT_EQ(memory.compute_weights, 0u);
  EXPECT_EQ(memory.gradients, table.n_gradients() * sizeof(float));
  EXPECT_EQ(table.n_total() - table.n_gradients(), std::size_t{kFeatures * 3 * 3 * 3});
  std::size_t n_reduced = 0;
  for (const comm::Bucket& bucket : run->plan().buckets()) n_reduced += bucket.n_elements;
  EXPECT_EQ(n_reduced, table.n_gradients());
}

/// The weights that a run reads must be its masters, rounded to that type.
void expect_rounded_masters(test::SmallRun& run, DType dtype) {
  const std::vector<float> masters = test::ReplicaProbe::masters(run.replica());
  const auto bits = dtype == DType::bf16 ? test::bf16_bits(masters) : test::fp16_bits(masters);
  EXPECT_EQ(test::ReplicaProbe::compute_weights(run.replica()), bits);
  EXPECT_NE(test::rounded_to(dtype, masters), masters);
}

/// A step whose loss is above the limit: it runs forward and backward, and changes nothing.
void run_a_skipped_step(test::SmallRun& run) {
  const std::vector<float> before = run.all_weights();
  run.step(0, {}, 0.01f);
  EXPECT_EQ(run.result().is_applied, 0u);
  EXPECT_EQ(run.all_weights(), before);
}

struct Device {
  MakeBackend make;
  Precision precision;
};
const Device kDevicesOf16Bits[] = {
    {make_cpu, Precision::bf16},
#ifdef LOCKSTEP_CUDA
    {[] { return test::make_cuda_on_host_backend(); }, Precision::bf16},
    {[] { return test::make_cuda_on_host_backend(); }, Precision::fp16},
#endif
};

/// Tests initial values, what the optimizer writes or a skipped step leaves, a checkpoint, and imported weights.
TEST_F(Parameters, In16BitsAreReadAsTheRoundedMasters) {
  config_.loss_scale.initial = 128;
  for (const auto& [make, precision] : kDevicesOf16Bits)
    for (const char* optimizer : {"sgd", "adamw", "lars"}) {
      SCOPED_TRACE(std::string(name(precision)) + ", " + optimizer);
      config_.precision = precision;
      config_.optimizer.kind = optimizer;
      const DType dtype = storage_type(precision);
      const auto trained = start(make), loaded = start(make), imported = start(make);
      run_a_skipped_step(*trained);
      expect_rounded_masters(*trained, dtype);
      const std::vector<float> initial = trained->all_weights();
      for (int step = 0; step < 2; ++step) trained->step(step);
      EXPECT_NE(trained->all_weights(), initial);
      expect_rounded_masters(*trained, dtype);
      run_a_skipped_step(*trained);
      expect_rounded_masters(*trained, dtype);

      // Both have rounded other weights before this.
      const checkpoint::test::ScratchDirectory scratch;
      checkpoint::save(scratch.file("a.h5"), trained->replica().sources(), {{"step", 2}}, *world_);
      run_a_skipped_step(*loaded);
      checkpoint::load(scratch.file("a.h5"), loaded->replica().targets());
      run_a_skipped_step(*imported);
      imported->replica().load_named({.path = "trained", .tensors = trained->replica().named_tensors(2)}, *world_);
      for (const auto& run : {loaded.get(), imported.get()}) {
        run_a_skipped_step(*run);
        EXPECT_EQ(run->all_weights(), trained->all_weights());
        expect_rounded_masters(*run, dtype);
      }
    }
}

TEST_F(Parameters, InBf16TakeTheMemoryThatIsPlanned) {
  config_.precision = Precision::bf16;
  const auto cpu = make_cpu();
  test::RecordingBackend recording(*cpu);
  const auto communicator = comm::make_communicator(config_.comm, *world_, recording);
  test::SmallRun run(config_, recording, *communicator);
  const train::MemoryReport memory = run.plan().memory();
  EXPECT_EQ(memory.compute_weights, run.plan().parameters().n_total() * 2);
  std::multiset<std::size_t> sizes;
  for (const test::Call& call : recording.recording().calls())
    if (call.what == "allocate") sizes.insert(call.size_bytes);
  for (const std::size_t size_bytes : {memory.parameters, memory.compute_weights, memory.optimizer, memory.activations})
    EXPECT_EQ(sizes.count(size_bytes), 1u) << size_bytes;
  train::MemoryReport without = memory;
  without.compute_weights = 0;
  EXPECT_EQ(memory.total() - without.total(), memory.compute_weights);
}

TEST_F(Parameters, TheirAveragesTakeTheMemoryThatIsPlanned) {
  config_.ema.decay = 0.9;
  const auto cpu = make_cpu();
  test::RecordingBackend recording(*cpu);
  const auto communicator = comm::make_communicator(config_.comm, *world_, recording);
  test::SmallRun run(config_, recording, *communicator);
  const train::MemoryReport memory = run.plan().memory();
  EXPECT_EQ(memory.averages, run.plan().parameters().n_gradients() * sizeof(float));
  std::multiset<std::size_t> sizes;
  for (const test::Call& call : recording.recording().calls())
    if (call.what == "allocate") sizes.insert(call.size_bytes);
  EXPECT_EQ(sizes.count(memory.averages), memory.averages == memory.parameters ? 2u : 1u);
  train::MemoryReport without = memory;
  without.averages = 0;
  EXPECT_EQ(memory.total() - without.total(), memory.averages);
}

}  // namespace
}  // namespace lockstep

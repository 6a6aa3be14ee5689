// A model for inference: it computes what the evaluation of a replica computes, and reports files that do not fit. With
// --logits it writes its outputs, for test/checkpoint/onnx_test.py.
#include "inference/inference.h"
#include "data/image_set.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iostream>

#include "lockstep/error.h"
#include "tasks/task.h"
#include "test/support/program.h"
#include "test/train/small_run.h"

namespace lockstep::inference {
namespace {

constexpr int kSize = 16, kCapacity = 8;

Config config_of_test() {
  Config config = test::small_config(kSize, 8);
  config.data.augment = {};
  config.data.validation = "synthetic";
  config.evaluation.batch_per_rank = kCapacity;
  return config;
}

/// The weights of a replica, as a file would contain them.
checkpoint::ModelFile file_of(train::Replica& replica) {
  return {.path = "model.h5", .state = {}, .tensors = replica.named_tensors(1)};
}

/// The first batch, with padding after the samples, as from the loader.
data::Batch first_batch(const data::Dataset& set, std::int64_t n_samples, std::int64_t capacity,
                        std::vector<std::vector<std::byte>>& memory) {
  const std::vector<data::Field> fields = set.fields();
  data::Batch batch{.n_samples = n_samples, .fields = {}};
  memory.clear();
  for (const data::Field& field : fields)
    memory.emplace_back(static_cast<std::size_t>(capacity) * field.size_bytes(),
                        static_cast<std::byte>(field.padding_byte));
  for (std::int64_t i = 0; i < n_samples; ++i) {
    std::vector<std::span<std::byte>> targets;
    for (std::size_t f = 0; f < fields.size(); ++f)
      targets.push_back(
          std::span(memory[f]).subspan(static_cast<std::size_t>(i) * fields[f].size_bytes(), fields[f].size_bytes()));
    set.read(i, 0, targets);
  }
  for (const auto& field : memory) batch.fields.emplace_back(field);
  return batch;
}

/// `PROGRAM --logits MODEL IMAGES LOGITS N`: writes N synthetic images (N, H, W, C) uint8 of the model's size, and the
/// model's outputs for them (N, classes) fp32.
int write_logits(int argc, char** argv) {
  if (argc < 6) return 2;
  try {
    const checkpoint::ModelFile file = checkpoint::read_model_file(argv[2]);
    Config config;
    set_model(config, file);
    const auto task = tasks::make_task(config);
    task->adopt(file.state.at("inference"), file.path);
    const int height = file.state.at("inference").at("height").get<int>();
    const int n = std::atoi(argv[5]);
    const auto set = data::make_synthetic_set(7, n, height, height, 3, config.model.classes, "test");
    const auto backend = make_backend({.device = "cpu", .threads = 1});
    Inference inference(config, *task, set->fields(), *backend, n);
    inference.load(file, *comm::single_world());
    std::vector<std::vector<std::byte>> memory;
    const Inference::Result result = inference.run(first_batch(*set, n, n, memory));
    std::ofstream(argv[3], std::ios::binary)
        .write(reinterpret_cast<const char*>(memory[0].data()), static_cast<std::streamsize>(memory[0].size()));
    std::ofstream(argv[4], std::ios::binary)
        .write(reinterpret_cast<const char*>(result.outputs.data()),
               static_cast<std::streamsize>(result.outputs.size_bytes()));
  } catch (const Error& error) {
    std::cerr << error.what() << '\n';
    return 1;
  }
  return 0;
}
const test::Role role("logits", write_logits);

TEST(Inference, ComputesWhatAReplicaEvaluates) {
  const Config config = config_of_test();
  const auto world = comm::single_world();
  const auto backend = make_backend({.device = "cpu", .threads = 1});
  const auto communicator = comm::make_communicator(config.comm, *world, *backend);
  const auto set = test::synthetic_set(config);
  test::SmallRun run(config, *backend, *communicator, tasks::make_image_classification(config, set, set));
  std::vector<std::vector<std::byte>> memory;
  const data::Batch batch = first_batch(*set, 5, kCapacity, memory);

  const auto own_backend = make_backend({.device = "cpu", .threads = 1});
  const auto task = tasks::make_image_classification(config, set, set);
  Inference inference(config, *task, set->fields(), *own_backend, kCapacity);
  const checkpoint::ModelFile file = file_of(run.replica());
  inference.load(file, *comm::single_world());
  const Inference::Result result = inference.run(batch);
  EXPECT_EQ(result.sums.count, 5.0);
  ASSERT_EQ(result.outputs.size(), 5u * static_cast<std::size_t>(config.model.classes));
  double loss = 0, correct = 0;
  for (std::size_t i = 0; i < 5; ++i) {
    const auto logits = result.outputs.subspan(i * 10, 10);
    std::int32_t label = -1;
    std::memcpy(&label, memory[1].data() + i * 4, 4);
    double sum = 0;
    for (const float logit : logits) sum += std::exp(static_cast<double>(logit));
    loss += std::log(sum) - logits[static_cast<std::size_t>(label)];
    correct += std::ranges::max_element(logits) - logits.begin() == label;
  }
  EXPECT_NEAR(result.sums.loss, loss, 1e-4 * std::abs(loss));
  EXPECT_EQ(result.sums.correct, correct);
  run.replica().begin_evaluation();
  run.replica().evaluate(batch);
  const LossSums of_replica = run.replica().end_evaluation();
  EXPECT_EQ(result.sums.loss, of_replica.loss);
  EXPECT_EQ(result.sums.correct, of_replica.correct);
  EXPECT_EQ(result.sums.count, of_replica.count);

  checkpoint::ModelFile other = file;
  other.tensors.front().shape = {1};
  EXPECT_THROW(inference.load(other, *world), Error);
  other.tensors.erase(other.tensors.begin());
  try {
    inference.load(other, *world);
    FAIL() << "a file without " << file.tensors.front().name << " was loaded";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::checkpoint_mismatch);
    EXPECT_NE(std::string(error.what()).find("model.h5 has no tensor " + file.tensors.front().name), std::string::npos);
  }
}

}  // namespace
}  // namespace lockstep::inference

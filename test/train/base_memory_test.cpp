// The memory of a base model beside which adapters are trained: with 16 bits without fp32 masters, in NF4, and as
// planned; and the memory of a model that generates text.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "comm/world.h"
#include "data/text_set.h"
#include "graph/nf4.h"
#include "inference/text_model.h"
#include "lockstep/bf16.h"
#include "tasks/task.h"
#include "test/support/recording_backend.h"
#include "test/train/language_golden.h"
#include "test/train/small_run.h"

namespace lockstep {
namespace {

Config config_of(Precision precision, const char* base_precision) {
  Config config;
  config.precision = precision;
  config.model.family = "llama";
  config.model.config =
      R"({"architectures": ["Qwen2ForCausalLM"], "vocab_size": 64, "hidden_size": 64, "intermediate_size": 96,
          "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 32,
          "tie_word_embeddings": true})";
  config.model.lora.rank = 2;
  config.model.lora.targets = {"q", "v", "down"};
  config.model.base_precision = base_precision;
  config.data.train = "synthetic";
  config.data.sequence_length = 8;
  config.train.global_batch = 2;
  config.optimizer.kind = "adamw";
  config.cpu.threads = 1;
  return config;
}

class BaseMemory : public testing::TestWithParam<std::tuple<Precision, const char*>> {
 protected:
  BaseMemory()
      : config_(config_of(std::get<0>(GetParam()), std::get<1>(GetParam()))),
        cpu_(make_backend({.device = "cpu", .threads = 1})),
        backend_(*cpu_),
        world_(comm::single_world()),
        communicator_(comm::make_communicator(config_.comm, *world_, backend_)),
        task_(tasks::make_task(config_)) {
    task_->open_train_set();
    run_ = std::make_unique<test::SmallRun>(config_, backend_, *communicator_, std::move(task_));
  }
  checkpoint::ModelFile base() const {
    checkpoint::ModelFile file{.path = "base", .state = {}, .tensors = {}};
    for (checkpoint::NamedTensor& tensor : test::golden_weights(run_->plan().parameters(), 7))
      if (tensor.name.find(".lora_") == std::string::npos) file.tensors.push_back(std::move(tensor));
    return file;
  }
  bool is_in_nf4() const { return config_.model.base_precision == "nf4"; }
  bool is_bf16() const { return config_.precision == Precision::bf16; }

  Config config_;
  std::unique_ptr<Backend> cpu_;
  test::RecordingBackend backend_;
  std::unique_ptr<World> world_;
  std::unique_ptr<Communicator> communicator_;
  std::unique_ptr<tasks::Task> task_;
  std::unique_ptr<test::SmallRun> run_;
};

TEST_P(BaseMemory, IsAsPlanned) {
  const train::MemoryReport memory = run_->plan().memory();
  std::multiset<std::size_t> sizes;
  for (const test::Call& call : backend_.recording().calls())
    if (call.what == "allocate") sizes.insert(call.size_bytes);
  EXPECT_GE(sizes.count(memory.parameters), 1u);
  if (is_bf16()) {
    EXPECT_GE(sizes.count(memory.compute_weights), 1u);
  }
  if (is_in_nf4()) {
    EXPECT_EQ(sizes.count(memory.nf4_weights), 1u);
  }
  const graph::ParameterTable& table = run_->plan().parameters();
  std::size_t n_matrices = 0, n_in_fp32 = 0;  // elements of the base: read in the compute type, and in fp32
  for (const graph::Parameter& p : table.parameters()) {
    EXPECT_EQ(p.is_base, !p.trainable) << p.name;
    if (p.is_base) (p.kind == graph::ParameterKind::norm ? n_in_fp32 : n_matrices) += p.n_elements;
  }
  // A 16-bit base takes two bytes per element; only what is trained, the norms, tables and padding take fp32.
  if (is_bf16() && !is_in_nf4()) {
    EXPECT_LT(memory.parameters, 4 * (table.n_trainable() + n_in_fp32) + 8192);
    EXPECT_GE(memory.compute_weights, 2 * n_matrices);
  }
  EXPECT_EQ(memory.gradients, 4 * table.n_trainable());
  EXPECT_EQ(memory.optimizer, graph::aligned(sizeof(train::StepState)) + 8 * table.n_trainable());
  for (const train::StateTensor& tensor : run_->plan().state())
    EXPECT_NE(tensor.path.find(".lora_"), std::string::npos) << tensor.path;
}

TEST_P(BaseMemory, StaysAsItIsWhileAdaptersAreTrained) {
  checkpoint::ModelFile base = this->base();
  run_->replica().load_base(base, *world_);
  const auto before = run_->all_weights();
  const double first = run_->step(0);
  for (int step = 1; step < 4; ++step) run_->step(step);
  EXPECT_NE(run_->all_weights(), before);
  // With adapters of zeros, the loss is again that of the base.
  checkpoint::ModelFile zeros{.path = "zeros"};
  for (const graph::Parameter& p : run_->plan().parameters().parameters())
    for (const graph::ParameterPart& part : p.parts)
      if (p.trainable) zeros.tensors.emplace_back(part.name, part.shape, std::vector<float>(part.n_elements()));
  run_->replica().load_named(zeros, *world_);
  EXPECT_EQ(run_->step(0), first);
  base.tensors.pop_back();
  EXPECT_THROW(run_->replica().load_base(base, *world_), Error);
}

TEST_P(BaseMemory, OfGenerationIsThatOfTheWeightsInTheirType) {
  const checkpoint::ModelFile file = base();
  std::size_t n_values = 0, greatest = 0;
  for (const checkpoint::NamedTensor& tensor : file.tensors) n_values += tensor.n_elements();
  const std::unique_ptr<Backend> cpu = make_backend({.device = "cpu", .threads = 1});  // the run's backend is frozen
  test::RecordingBackend backend(*cpu);
  const inference::TextModel model(models::parse_llama_config(config_.model.config, "the test"),
                                   {.slots = 1, .capacity = 8, .chunk = 8}, config_.precision, file, backend, *world_);
  for (const test::Call& call : backend.recording().calls())
    if (call.what == "allocate") greatest = std::max(greatest, call.size_bytes);
  EXPECT_GE(greatest, (is_bf16() ? 2 : 4) * n_values);
  EXPECT_LT(greatest, (is_bf16() ? 3 : 5) * n_values);
}

INSTANTIATE_TEST_SUITE_P(Precisions, BaseMemory,
                         testing::Combine(testing::Values(Precision::fp32, Precision::bf16),
                                          testing::Values("same", "nf4")),
                         [](const auto& info) {
                           return std::string(name(std::get<0>(info.param))) + "_" + std::get<1>(info.param);
                         });

}  // namespace
}  // namespace lockstep

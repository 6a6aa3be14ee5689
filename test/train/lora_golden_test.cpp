// Adapters, compared with PEFT: ten steps of small Llama, Qwen2 and Gemma 3 models, and logits with an adapter that
// PEFT has saved. test/golden/make_lora_golden.py made the figures, and describes them.
// timeout: 300
// sanitizers: -*_none
#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <filesystem>

#include "checkpoint/huggingface.h"
#include "checkpoint/peft.h"
#include "comm/world.h"
#include "data/text_set.h"
#include "inference/adapters.h"
#include "inference/text_model.h"
#include "models/lora.h"
#include "tasks/task.h"
#include "test/support/device.h"
#include "test/train/language_golden.h"
#include "test/train/small_run.h"

namespace lockstep {
namespace {

using test::GoldenText;
using test::Json;

Config config_of(const Json& golden, Precision precision) {
  Config config = test::golden_config(golden, precision);
  const Json& theirs = golden["lora"];
  Config::Model::Lora& lora = config.model.lora;
  lora.rank = theirs["r"];
  lora.alpha = theirs["lora_alpha"];
  lora.rslora = theirs.value("use_rslora", false);
  lora.dropout = theirs.value("lora_dropout", 0.0);
  lora.targets.clear();
  if (golden["name"].get<std::string>().ends_with("nf4")) config.model.base_precision = "nf4";
  for (const std::string module : theirs["target_modules"]) lora.targets.push_back(module.substr(0, module.find('_')));
  return config;
}

/// All weights are normally distributed with standard deviation 0.2; those of the base are drawn by tensor name.
void load_golden_weights(train::Replica& replica, std::uint32_t seed) {
  checkpoint::ModelFile base{.path = "golden", .state = {}, .tensors = {}};
  checkpoint::ModelFile adapters{.path = "adapters"};
  for (checkpoint::NamedTensor& tensor : test::golden_weights(replica.parameters(), seed))
    (models::is_adapter(tensor.name) ? adapters : base).tensors.push_back(std::move(tensor));
  const auto world = comm::single_world();
  replica.load_base(base, *world);
  replica.load_named(adapters, *world);
}

void expect_as_in_peft(const char* name_of_case, Precision precision, const char* recompute, int n_steps,
                       const std::unique_ptr<Backend>& backend) {
  const Json golden = test::read_golden("lora_" + std::string(name_of_case));
  const bool is_finer = precision == Precision::fp16 || precision == Precision::tf32;
  const double part = is_finer ? 0.25 : 1;  // of bf16's bounds, as in language_golden_test.cpp
  const Json& theirs = golden.at(is_finer ? "bf16" : std::string(name(precision)));
  const std::vector<double> losses = golden["losses"], spread = theirs["spread"];
  Config config = config_of(golden, precision);
  config.model.recompute = recompute;
  const auto world = comm::single_world();
  const auto communicator = comm::make_communicator(config.comm, *world, *backend);
  test::SmallRun run(config, *backend, *communicator,
                     tasks::make_language_modelling(config, std::make_shared<GoldenText>(golden), nullptr));
  load_golden_weights(run.replica(), config.run.seed);
  for (int step = 0; step < n_steps; ++step) {
    const auto i = static_cast<std::size_t>(step);
    const double loss = run.step(step), apart = std::abs(loss / losses[i] - 1), bound = 3 * part * spread[i];
    std::printf("step %2d: loss %.7f, fp64 %.7f, apart %.1e, PyTorch's %.1e\n", step + 1, loss, losses[i], apart,
                bound / 3);
    EXPECT_LT(apart, bound) << "step " << step + 1;
    if (step > 0) continue;
    const double nominal = golden["batch"].get<double>() * (golden["sequence_length"].get<double>() - 1);
    const double error = test::gradient_distance(golden["gradients"], run.replica(), run.plan().parameters(),
                                                 nominal / run.result().sums.weight / run.replica().loss_scale().scale);
    const double error_of_theirs = part * theirs["gradient_error"].get<double>();
    std::printf("step  1: gradients %.2e from fp64, PyTorch's %.2e\n", error, error_of_theirs);
    EXPECT_LT(error, 3 * error_of_theirs);
  }
}

std::vector<Precision> precisions() {
  if (test::tested_device().device == "cpu") return {Precision::fp32, Precision::bf16};
  return {Precision::fp32, Precision::bf16, Precision::tf32, Precision::fp16};
}

class LoraGolden : public testing::TestWithParam<std::tuple<const char*, Precision, const char*>> {};

TEST_P(LoraGolden, TenStepsAsInPeft) {
  const auto [name_of_case, precision, recompute] = GetParam();
  expect_as_in_peft(name_of_case, precision, recompute, test::kGoldenSteps, make_backend(test::tested_device()));
}

#ifdef LOCKSTEP_CUDA
TEST(LoraGoldenOnHost, TheFirstStepsAsInPeft) {
  for (const char* name_of_case : {"qwen2", "nf4", "gemma3_nf4", "dropout"})
    expect_as_in_peft(name_of_case, Precision::bf16, "block", 2, test::make_cuda_on_host_backend());
}
#endif

INSTANTIATE_TEST_SUITE_P(Models, LoraGolden,
                         testing::Combine(testing::Values("llama", "qwen2", "nf4", "gemma3", "gemma3_nf4", "dropout"),
                                          testing::ValuesIn(precisions()),
                                          testing::Values("none", "block", "selective")),
                         [](const auto& info) {
                           return std::get<0>(info.param) + std::string("_") +
                                  std::string(name(std::get<1>(info.param))) + "_" + std::get<2>(info.param);
                         });

/// The directory of the base model, whose weights are a function of the seed.
std::string write_base(const Json& golden, const std::string& folder) {
  Config config = test::golden_config(golden, Precision::fp32);
  const auto backend = make_backend({.device = "cpu", .threads = 1});
  const auto world = comm::single_world();
  const auto communicator = comm::make_communicator(config.comm, *world, *backend);
  test::SmallRun run(config, *backend, *communicator,
                     tasks::make_language_modelling(config, std::make_shared<GoldenText>(golden), nullptr));
  checkpoint::write_huggingface(folder, test::golden_weights(run.plan().parameters(), golden["seed"]),
                                {{"config.json", golden["config"].dump()}}, {});
  return folder;
}

/// An adapter that PEFT has saved gives the same logits as in PEFT, and so does one that was written again.
TEST(LoraFiles, LogitsOfAnAdapterOfPeft) {
  const Json golden = test::read_golden("lora_qwen2");
  const std::string base = write_base(golden, testing::TempDir() + "/base");
  const std::string again = testing::TempDir() + "/again";
  const checkpoint::ModelFile theirs = checkpoint::read_peft("test/golden/lora_qwen2");
  checkpoint::write_peft(again, theirs.tensors, inference::lora_of(theirs), base, theirs.state, {});
  const std::vector<std::int32_t> tokens = golden["logits"]["tokens"];
  const std::vector<int> positions = golden["logits"]["positions"];
  for (const std::string& folder : {std::string("test/golden/lora_qwen2"), again}) {
    const checkpoint::ModelFile file =
        inference::merged(inference::with_base(checkpoint::read_model_file(folder), folder == again ? "" : base));
    const models::LlamaConfig config = models::parse_llama_config(golden["config"].dump(), "golden");
    const auto backend = make_backend({.device = "cpu", .threads = 1});
    inference::TextModel model(config, {.slots = 2, .capacity = 16, .chunk = 16}, Precision::fp32, file, *backend,
                               *comm::single_world());
    std::vector<generate::NewToken> new_tokens;
    for (std::size_t t = 0; t < tokens.size(); ++t)
      new_tokens.push_back({.id = tokens[t],
                            .slot = 0,
                            .position = static_cast<std::int32_t>(t),
                            .wants_logits = std::ranges::find(positions, t) != positions.end()});
    const std::span<const float> logits = model.decoder().prefill(new_tokens);
    ASSERT_EQ(logits.size(), 2 * static_cast<std::size_t>(config.vocabulary));
    double greatest = 0;
    for (std::size_t row = 0; row < positions.size(); ++row) {
      const std::vector<double> expected = golden["logits"]["values"][row];
      for (std::size_t i = 0; i < expected.size(); ++i)
        greatest = std::max(greatest, std::abs(double{logits[row * expected.size() + i]} - expected[i]));
    }
    std::printf("logits %.2e from fp64, PEFT's in fp32 %.2e\n", greatest, golden["logits"]["apart"].get<double>());
    EXPECT_LT(greatest, 1e-4) << folder;
  }
}

}  // namespace
}  // namespace lockstep

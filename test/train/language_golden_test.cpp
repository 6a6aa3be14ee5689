// Ten steps of small models of each architecture, compared with PyTorch and transformers.
// test/golden/make_language_golden.py made the figures, and describes them. Weights, tokens and documents are the same
// functions of the seed in both languages.
// timeout: 300
// sanitizers: -LanguageGoldenOnHost.*:*/llama*:*/qwen2*:*_none
#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <set>

#include "comm/world.h"
#include "data/text_set.h"
#include "tasks/task.h"
#include "test/support/device.h"
#include "test/train/language_golden.h"
#include "test/train/small_run.h"

namespace lockstep {
namespace {

using test::golden_weights;
using test::GoldenText;
using test::Json;
using test::kGoldenSteps;

/// What train.gradient_type, optimizer.moments and optimizer.masters select.
enum class Kept : std::uint8_t { in_fp32, in_bf16 };

void expect_as_in_pytorch(const char* name_of_model, Precision precision, const char* recompute, int n_steps,
                          const std::unique_ptr<Backend>& backend, Kept kept = Kept::in_fp32) {
  // fp16 and tf32 have 3 more significant bits than bf16, so their bounds are a quarter of those of bf16.
  const bool is_finer = precision == Precision::fp16 || precision == Precision::tf32;
  const double part = is_finer ? 0.25 : 1;
  const Json golden = test::read_golden("language_" + std::string(name_of_model)),
             &theirs = golden.at(is_finer ? "bf16" : std::string(name(precision)));
  const std::vector<double> losses = golden["losses"], spread = theirs["spread"];
  Config config = test::golden_config(golden, precision);
  config.model.recompute = recompute;
  if (kept == Kept::in_bf16) {
    config.train.gradient_type = config.optimizer.moments = DType::bf16;
    config.optimizer.masters = false;
  }
  const auto world = comm::single_world();
  const auto communicator = comm::make_communicator(config.comm, *world, *backend);
  test::SmallRun run(config, *backend, *communicator,
                     tasks::make_language_modelling(config, std::make_shared<GoldenText>(golden), nullptr));
  run.replica().load_named({.path = "golden", .tensors = golden_weights(run.plan().parameters(), config.run.seed)},
                           *world);
  for (int step = 0; step < n_steps; ++step) {
    const double loss = run.step(step);
    const double apart = std::abs(loss / losses[static_cast<std::size_t>(step)] - 1);
    const double bound = 3 * part * spread[static_cast<std::size_t>(step)];
    std::printf("step %2d: loss %.7f, fp64 %.7f, apart %.1e, PyTorch's %.1e\n", step + 1, loss,
                losses[static_cast<std::size_t>(step)], apart, bound / 3);
    EXPECT_LT(apart, bound) << "step " << step + 1;
    if (step > 0) continue;
    // Before the step is applied, gradients are divided by the number of tokens in a step without masked tokens.
    const double nominal = static_cast<double>(golden["batch"]) * (static_cast<double>(golden["sequence_length"]) - 1);
    const double error =
        test::gradient_distance(golden["first_step"]["gradients"], run.replica(), run.plan().parameters(),
                                nominal / run.result().sums.weight / run.replica().loss_scale().scale);
    const double error_of_theirs = part * theirs["gradient_error"].get<double>();
    std::printf("step  1: gradients %.2e from fp64, PyTorch's %.2e\n", error, error_of_theirs);
    EXPECT_LT(error, 3 * error_of_theirs);
  }
}

/// The precisions in which the tested device computes.
std::vector<Precision> precisions() {
  if (test::tested_device().device == "cpu") return {Precision::fp32, Precision::bf16};
  return {Precision::fp32, Precision::bf16, Precision::tf32, Precision::fp16};
}

class LanguageGolden : public testing::TestWithParam<std::tuple<const char*, Precision, const char*>> {};

std::string name_of_case(const testing::TestParamInfo<LanguageGolden::ParamType>& info) {
  return std::get<0>(info.param) + std::string("_") + std::string(name(std::get<1>(info.param))) + "_" +
         std::get<2>(info.param);
}

TEST_P(LanguageGolden, TenStepsAsInPyTorch) {
  const auto [name_of_model, precision, recompute] = GetParam();
  expect_as_in_pytorch(name_of_model, precision, recompute, kGoldenSteps, make_backend(test::tested_device()));
}

/// Gradients, moments and weights in bf16 only: the first steps are not further away than those with fp32.
TEST(LanguageGolden, TenStepsWithoutMastersAsInPyTorch) {
  for (const char* model : {"llama_tied", "qwen2"}) {
    SCOPED_TRACE(model);
    expect_as_in_pytorch(model, Precision::bf16, "none", kGoldenSteps, make_backend(test::tested_device()),
                         Kept::in_bf16);
  }
}

/// Compared with PyTorch's emulation: all sizes of this model are multiples of 16.
INSTANTIATE_TEST_SUITE_P(Fp8, LanguageGolden,
                         testing::Combine(testing::Values("qwen2_16"), testing::Values(Precision::fp8),
                                          testing::Values("none", "block", "selective")),
                         name_of_case);

#ifdef LOCKSTEP_CUDA
/// The CUDA kernels, compiled for the host, with plain loops instead of cuDNN and cuBLASLt. This tests the lists of
/// documents, the divided backward pass of attention, and the loss scale.
TEST(LanguageGoldenOnHost, TheFirstStepsInHalfPrecisionAsInPyTorch) {
  for (const Precision precision : {Precision::fp16, Precision::bf16})
    for (const char* model : {"llama_tied", "llama3_biased", "qwen2", "qwen3", "mistral", "smollm3", "gemma3"}) {
      SCOPED_TRACE(fmt::format("{}, {}", model, name(precision)));
      expect_as_in_pytorch(model, precision, "none", precision == Precision::fp16 ? 3 : 1,
                           test::make_cuda_on_host_backend());
    }
  expect_as_in_pytorch("qwen2_16", Precision::fp8, "none", 1, test::make_cuda_on_host_backend());
}

TEST(LanguageGoldenOnHost, TheFirstStepsWithoutMastersAsInPyTorch) {
  for (const char* model : {"llama_tied", "qwen2"}) {
    SCOPED_TRACE(model);
    expect_as_in_pytorch(model, Precision::bf16, "none", 2, test::make_cuda_on_host_backend(), Kept::in_bf16);
  }
}

/// The scales of tensors that are recomputed are those of the first time.
TEST(LanguageGoldenOnHost, RecomputationInFp8GivesTheSameBits) {
  const Json golden = test::read_golden("language_qwen2_16");
  Config config = test::golden_config(golden, Precision::fp8);
  const auto backend = test::make_cuda_on_host_backend();
  const auto world = comm::single_world();
  const auto communicator = comm::make_communicator(config.comm, *world, *backend);
  std::set<std::uint64_t> hashes;
  for (const char* recompute : {"none", "block", "selective"}) {
    config.model.recompute = recompute;
    test::SmallRun run(config, *backend, *communicator,
                       tasks::make_language_modelling(config, std::make_shared<GoldenText>(golden), nullptr));
    for (int step = 0; step < 2; ++step) run.step(step);
    hashes.insert(run.replica().hash());
  }
  EXPECT_EQ(hashes.size(), 1u);
}
#endif

INSTANTIATE_TEST_SUITE_P(
    Models, LanguageGolden,
    testing::Combine(testing::Values("llama_tied", "llama3_biased", "qwen2", "qwen3", "mistral", "smollm3", "gemma3"),
                     testing::ValuesIn(precisions()), testing::Values("none", "block", "selective")),
    name_of_case);

}  // namespace
}  // namespace lockstep

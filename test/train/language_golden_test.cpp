// Ten steps of small Llama, Qwen2 and Qwen3 models against PyTorch and transformers.
// test/golden/make_language_golden.py made the figures, and says what they are. Weights, tokens and documents are the
// same functions of the seed in both languages.
// timeout: 300
// sanitizers: -LanguageGoldenOnHost.*:*/llama*:*/qwen2*:*_none
#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <cstring>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "checkpoint/safetensors.h"
#include "comm/world.h"
#include "lockstep/philox.h"
#include "tasks/language_modelling/task.h"
#include "test/support/device.h"
#include "test/train/golden_places.h"
#include "test/train/small_run.h"

namespace lockstep {
namespace {

using Json = nlohmann::json;

constexpr int kSteps = 10;
constexpr RandomPurpose kTokens{5}, kEnds{6};  // as in make_language_golden.py

/// Uniform tokens. One in five ends a document.
class GoldenText final : public data::TextSet {
 public:
  explicit GoldenText(const Json& golden)
      : seed_(golden["seed"]), vocabulary_(golden["config"]["vocab_size"]), length_(golden["sequence_length"]) {
    info_.path = "golden";
    info_.n_samples = kSteps * golden["batch"].get<std::int64_t>();
    info_.sequence_length = static_cast<int>(length_);
    info_.vocabulary_size = vocabulary_;
  }
  const data::TextSetInfo& info() const override { return info_; }
  void read(std::int64_t sample, std::uint32_t, std::span<const std::span<std::byte>> targets) const override {
    const auto n = static_cast<std::size_t>(length_);
    std::vector<std::int32_t> tokens(n), next(n, -1), start(n), positions(n);
    const Philox token(seed_, kTokens, 0, 0), end(seed_, kEnds, 0, 0);
    for (std::size_t t = 0; t < n; ++t) {
      const auto i = static_cast<std::uint64_t>(sample) * n + t;
      tokens[t] = static_cast<std::int32_t>(std::floor(token.uniform(i) * vocabulary_));
      start[t] = t > 0 && end.uniform(i - 1) < 0.2 ? static_cast<std::int32_t>(t) : t > 0 ? start[t - 1] : 0;
      positions[t] = static_cast<std::int32_t>(t) - start[t];
      if (t > 0 && start[t] == start[t - 1]) next[t - 1] = tokens[t];
    }
    const std::vector<std::int32_t>* const fields[] = {&tokens, &next, &start, &positions};
    for (std::size_t f = 0; f < targets.size(); ++f)
      std::memcpy(targets[f].data(), fields[f]->data(), targets[f].size());
  }

 private:
  std::uint32_t seed_;
  int vocabulary_;
  std::int64_t length_;
  data::TextSetInfo info_;
};

Json read_golden(const std::string& name) { return Json::parse(read_file("test/golden/language_" + name + ".json")); }

Config config_of(const Json& golden, Precision precision) {
  Config config;
  config.precision = precision;
  config.run.seed = golden["seed"];
  config.model.family = "llama";
  config.model.config = golden["config"].dump();
  config.data.train = "synthetic";
  config.data.sequence_length = golden["sequence_length"];
  config.train.global_batch = golden["batch"];
  config.optimizer.kind = "adamw";
  config.optimizer.learning_rate = golden["learning_rate"];
  config.optimizer.weight_decay = golden["weight_decay"];
  config.optimizer.beta1 = golden["beta1"];
  config.optimizer.beta2 = golden["beta2"];
  config.optimizer.epsilon = golden["epsilon"];
  config.optimizer.decay_norms_and_biases = false;
  config.cpu.threads = 1;
  return config;
}

/// As in make_language_golden.py: normal with the standard deviation 0.2, around 1 in norms. By the names of files.
std::vector<checkpoint::NamedTensor> golden_weights(const graph::ParameterTable& table, std::uint32_t seed) {
  std::vector<checkpoint::NamedTensor> out;
  for (const graph::Parameter& p : table.parameters())
    for (const graph::ParameterPart& part : p.parts) {
      checkpoint::NamedTensor tensor{.name = part.name, .shape = part.shape, .values = {}};
      const Philox random(seed, RandomPurpose::weights, name_hash(part.name), 0);
      const double mean = part.name.find("norm") == std::string::npos ? 0 : 1;
      for (std::size_t i = 0; i < part.n_elements(); ++i)
        tensor.values.push_back(static_cast<float>(mean + 0.2 * random.normal(i)));
      out.push_back(std::move(tensor));
    }
  return out;
}

/// Euclidean distance of the gradients, times `factor`, to PyTorch's fp64 ones at the stored places of all tensors.
double gradient_distance(const Json& exact, train::Replica& replica, const graph::ParameterTable& table,
                         double factor) {
  double difference = 0;
  std::size_t n_tensors = 0;
  for (const graph::Parameter& p : table.parameters()) {
    const std::vector<float> all = test::ReplicaProbe::gradient(replica, p.name);
    for (const graph::ParameterPart& part : p.parts) {
      const std::vector<double> values = exact.at(part.name)["values"];
      for (std::size_t i = 0; i < values.size(); ++i)
        difference += std::pow(factor * all[part.begin + test::place(i, part.n_elements())] - values[i], 2);
      ++n_tensors;
    }
  }
  EXPECT_EQ(n_tensors, exact.size());
  return std::sqrt(difference);
}

void expect_as_in_pytorch(const char* name_of_model, Precision precision, const char* recompute, int n_steps,
                          const std::unique_ptr<Backend>& backend) {
  // fp16 and tf32 have 3 bits more than bf16: a quarter of its bounds.
  const bool is_finer = precision == Precision::fp16 || precision == Precision::tf32;
  const double part = is_finer ? 0.25 : 1;
  const Json golden = read_golden(name_of_model), &theirs = golden.at(is_finer ? "bf16" : std::string(name(precision)));
  const std::vector<double> losses = golden["losses"], spread = theirs["spread"];
  Config config = config_of(golden, precision);
  config.model.recompute = recompute;
  const auto world = comm::single_world();
  const auto communicator = comm::make_communicator(config.comm, *world, *backend);
  test::SmallRun run(config, *backend, *communicator,
                     tasks::make_language_modelling(config, std::make_shared<GoldenText>(golden), nullptr));
  run.replica().load_named(golden_weights(run.plan().parameters(), config.run.seed));
  for (int step = 0; step < n_steps; ++step) {
    const double loss = run.step(step);
    const double apart = std::abs(loss / losses[static_cast<std::size_t>(step)] - 1);
    const double bound = 3 * part * spread[static_cast<std::size_t>(step)];
    std::printf("step %2d: loss %.7f, fp64 %.7f, apart %.1e, PyTorch's %.1e\n", step + 1, loss,
                losses[static_cast<std::size_t>(step)], apart, bound / 3);
    EXPECT_LT(apart, bound) << "step " << step + 1;
    if (step > 0) continue;
    // Before the step is applied, gradients are divided by the count of a step without masked tokens.
    const double nominal = static_cast<double>(golden["batch"]) * (static_cast<double>(golden["sequence_length"]) - 1);
    const double error = gradient_distance(golden["first_step"]["gradients"], run.replica(), run.plan().parameters(),
                                           nominal / run.result().sums.weight / run.replica().loss_scale().scale);
    const double error_of_theirs = part * theirs["gradient_error"].get<double>();
    std::printf("step  1: gradients %.2e from fp64, PyTorch's %.2e\n", error, error_of_theirs);
    EXPECT_LT(error, 3 * error_of_theirs);
  }
}

/// Those in which the tested device computes.
std::vector<Precision> precisions() {
  if (test::tested_device().device == "cpu") return {Precision::fp32, Precision::bf16};
  return {Precision::fp32, Precision::bf16, Precision::tf32, Precision::fp16};
}

class LanguageGolden : public testing::TestWithParam<std::tuple<const char*, Precision, const char*>> {};

TEST_P(LanguageGolden, TenStepsAsInPyTorch) {
  const auto [name_of_model, precision, recompute] = GetParam();
  expect_as_in_pytorch(name_of_model, precision, recompute, kSteps, make_backend(test::tested_device()));
}

#ifdef LOCKSTEP_CUDA
/// The CUDA kernels, compiled for the host, with plain loops instead of cuDNN and cuBLASLt: tests the lists of
/// documents, the divided backward pass of attention, and the loss scale.
TEST(LanguageGoldenOnHost, TheFirstStepsInHalfPrecisionAsInPyTorch) {
  for (const Precision precision : {Precision::fp16, Precision::bf16})
    for (const char* model : {"llama_tied", "llama3_biased", "qwen2", "qwen3"}) {
      SCOPED_TRACE(fmt::format("{}, {}", model, name(precision)));
      expect_as_in_pytorch(model, precision, "none", precision == Precision::fp16 ? 3 : 1,
                           test::make_cuda_on_host_backend());
    }
}
#endif

INSTANTIATE_TEST_SUITE_P(Models, LanguageGolden,
                         testing::Combine(testing::Values("llama_tied", "llama3_biased", "qwen2", "qwen3"),
                                          testing::ValuesIn(precisions()),
                                          testing::Values("none", "block", "selective")),
                         [](const auto& info) {
                           return std::get<0>(info.param) + std::string("_") +
                                  std::string(name(std::get<1>(info.param))) + "_" + std::get<2>(info.param);
                         });

}  // namespace
}  // namespace lockstep

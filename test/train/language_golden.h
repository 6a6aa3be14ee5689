// Shared by the tests that use the golden files of language models: test/golden/make_language_golden.py and
// make_lora_golden.py. Weights, tokens and documents are the same functions of the seed in both languages.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "checkpoint/safetensors.h"
#include "data/text_set.h"
#include "lockstep/philox.h"
#include "test/train/golden_places.h"
#include "test/train/small_run.h"

namespace lockstep::test {

using Json = nlohmann::json;

inline constexpr int kGoldenSteps = 10;
inline constexpr RandomPurpose kTokens{5}, kEnds{6};  // as in make_language_golden.py

/// Uniform tokens. One in five ends a document.
class GoldenText final : public data::TextSet {
 public:
  explicit GoldenText(const Json& golden)
      : seed_(golden["seed"]), vocabulary_(golden["config"]["vocab_size"]), length_(golden["sequence_length"]) {
    info_.path = "golden";
    info_.n_samples = kGoldenSteps * golden["batch"].get<std::int64_t>();
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

/// NAME.json
inline Json read_golden(const std::string& name) { return Json::parse(read_file("test/golden/" + name + ".json")); }

inline Config golden_config(const Json& golden, Precision precision) {
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

/// As in make_language_golden.py: normally distributed with standard deviation 0.2, around the initial value in norms,
/// by the tensors' names in files.
inline std::vector<checkpoint::NamedTensor> golden_weights(const graph::ParameterTable& table, std::uint32_t seed) {
  std::vector<checkpoint::NamedTensor> out;
  for (const graph::Parameter& p : table.parameters())
    for (const graph::ParameterPart& part : p.parts) {
      std::vector<float> values;
      const Philox random(seed, RandomPurpose::weights, name_hash(part.name), 0);
      const double mean = part.name.find("norm") == std::string::npos ? 0 : p.initial.value;
      for (std::size_t i = 0; i < part.n_elements(); ++i)
        values.push_back(static_cast<float>(mean + 0.2 * random.normal(i)));
      out.emplace_back(part.name, part.shape, std::move(values));
    }
  return out;
}

/// The Euclidean distance between the gradients, times `factor`, and PyTorch's fp64 gradients at the stored places of
/// all trained tensors.
inline double gradient_distance(const Json& exact, const train::Replica& replica, const graph::ParameterTable& table,
                                double factor) {
  double difference = 0;
  std::size_t n_tensors = 0;
  for (const graph::Parameter& p : table.parameters()) {
    if (!p.trainable) continue;
    const std::vector<float> all = ReplicaProbe::gradient(replica, p.name);
    for (const graph::ParameterPart& part : p.parts) {
      const std::vector<double> values = exact.at(part.name)["values"];
      for (std::size_t i = 0; i < values.size(); ++i)
        difference += std::pow(factor * all[part.begin + place(i, part.n_elements())] - values[i], 2);
      ++n_tensors;
    }
  }
  EXPECT_EQ(n_tensors, exact.size());
  return std::sqrt(difference);
}

}  // namespace lockstep::test

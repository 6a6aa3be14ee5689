// Which parameters have weight decay, and which of them torchvision's references exempt with --norm-weight-decay 0
// (test/golden/schedule.json).
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "test/train/small_run.h"

namespace lockstep {
namespace {

std::set<std::string> without_decay(const Config::Optimizer& optimizer) {
  Config config = test::resnet50_config(32, 2);
  config.precision = Precision::fp32;
  config.model.width = 16;
  config.optimizer = optimizer;
  const std::shared_ptr<const data::ImageSet> set = data::make_synthetic_set(1, 4, 32, 32, 3, 1000, "train");
  const auto task = tasks::make_image_classification(config, set, nullptr);
  const auto backend = make_backend({.device = "cpu", .threads = 1});
  const train::StepPlan plan(config, *task, train::batch_shape(config, 0, 1), *backend, {});
  std::set<std::string> names;
  for (std::size_t i = 0; i < plan.optimizer().segments.size(); ++i)
    if (!plan.optimizer().segments[i].decay) names.insert(plan.parameters()[plan.parameters().order()[i]].name);
  return names;
}

TEST(WeightDecay, IsOffForTheKindsOfParametersThatAreExempt) {
  const nlohmann::json golden = nlohmann::json::parse(std::ifstream("test/golden/schedule.json"));
  const auto norms = golden["without_decay"].get<std::set<std::string>>();
  EXPECT_EQ(norms.size(), 106u);
  std::set<std::string> norms_and_biases = norms;
  norms_and_biases.insert("fc.bias");
  Config::Optimizer optimizer;
  EXPECT_EQ(without_decay(optimizer), std::set<std::string>());
  optimizer.decay_norms = false;
  EXPECT_EQ(without_decay(optimizer), norms);
  optimizer.decay_norms_and_biases = false;
  EXPECT_EQ(without_decay(optimizer), norms_and_biases);
  optimizer.decay_norms = true;
  EXPECT_EQ(without_decay(optimizer), norms_and_biases);
  Config::Optimizer lars;
  lars.kind = "lars";
  EXPECT_EQ(without_decay(lars), norms_and_biases);
}

}  // namespace
}  // namespace lockstep

#include "models/resnet_table.h"

#include <gtest/gtest.h>

#include <vector>

#include "lockstep/error.h"
#include "models/family.h"

namespace lockstep::models {
namespace {

/// The names and shapes that infer_resnet examines.
TensorShapes resnet(std::int64_t kernel_size, std::vector<int> blocks, bool bottleneck, std::int64_t width = 64) {
  TensorShapes out{{"conv1.weight", {64, 3, kernel_size, kernel_size}}, {"fc.weight", {10, 4}}};
  for (std::size_t stage = 0; stage < blocks.size(); ++stage)
    for (int block = 0; block < blocks[stage]; ++block) {
      const std::string name = fmt::format("layer{}.{}", stage + 1, block);
      out[name + ".conv1.weight"] = {1, 1, 1, 1};
      out[name + ".conv2.weight"] = {width, 64, 3, 3};
      if (bottleneck) out[name + ".conv3.weight"] = {1, 1, 1, 1};
    }
  return out;
}

TEST(ResnetTable, TheModelIsInferredFromNamesAndShapes) {
  const auto expect = [](const TensorShapes& tensors, int depth, const char* stem) {
    const Config::Model model = infer_resnet(tensors, "f");
    EXPECT_EQ(model.family, "resnet");
    EXPECT_EQ(model.depth, depth);
    EXPECT_EQ(model.stem, stem);
    EXPECT_EQ(model.classes, 10);
  };
  expect(resnet(3, {2, 2, 2, 2}, false), 18, "cifar");
  expect(resnet(7, {3, 4, 6, 3}, false), 34, "imagenet");
  expect(resnet(7, {3, 4, 6, 3}, true), 50, "imagenet");
  expect(resnet(7, {3, 4, 23, 3}, true), 101, "imagenet");
  expect(resnet(3, {3, 8, 36, 3}, true), 152, "cifar");
}

TEST(ResnetTable, ReportsTensorsThatAreNotThoseOfAResnet) {
  const auto message = [](const TensorShapes& tensors) -> std::string {
    try {
      infer_resnet(tensors, "f");
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::checkpoint_mismatch);
      return error.what();
    }
    return "";
  };
  EXPECT_NE(message({}).find("conv1.weight is missing"), std::string::npos);
  EXPECT_NE(message(resnet(5, {2, 2, 2, 2}, false)).find("kernel size"), std::string::npos);
  EXPECT_NE(message(resnet(7, {3, 4, 22, 3}, true)).find("3, 4, 22, 3 bottleneck"), std::string::npos);
  EXPECT_NE(message(resnet(7, {3, 4, 6, 3}, true, 128)).find("(128, 64, 3, 3)"), std::string::npos);
  TensorShapes headless = resnet(3, {2, 2, 2, 2}, false);
  headless.erase("fc.weight");
  EXPECT_NE(message(headless).find("fc.weight is missing"), std::string::npos);
}

// The numbers are from torchvision's documentation, for 1000 classes.
TEST(ResnetTable, ModelsHaveTheParametersOfTorchvision) {
  const std::map<int, std::int64_t> expected = {
      {18, 11689512}, {34, 21797672}, {50, 25557032}, {101, 44549160}, {152, 60192808}};
  for (const auto& [depth, n_parameters] : expected) {
    graph::ParameterTable table;
    graph::Graph graph({.batch = 1}, table);
    const graph::ActivationId images = graph.add_activation({.name = "images", .shape = {1, 224, 224, 3}});
    Config::Model model;
    model.depth = depth;
    model.stem = "imagenet";
    model.classes = 1000;
    const graph::ActivationId logits = models::resnet(graph, images, model, {});
    EXPECT_EQ(table.n_canonical(), n_parameters) << "ResNet-" << depth;
    EXPECT_EQ(graph.activation(logits).shape.last(), 1000);
  }
}

TEST(ResnetTable, AnUnknownDepthIsReportedWithTheKnownOnes) {
  EXPECT_EQ(resnet_depth(50).blocks[2], 6);
  EXPECT_EQ(resnet_depth(152).blocks[2], 36);
  try {
    resnet_depth(100);
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("18, 34, 50, 101, 152"), std::string::npos);
  }
}

}  // namespace
}  // namespace lockstep::models

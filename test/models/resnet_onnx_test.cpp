// The graph of an .onnx file: every value is computed before it is read, and the weights are those of the model.
// test/checkpoint/onnx_test.py shows that it computes the same.
#include "models/resnet_onnx.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "graph/graph.h"
#include "models/family.h"
#include "models/onnx.pb.h"

namespace lockstep::models {
namespace {

Config::Model model_of(int depth, const char* stem) {
  Config::Model model;
  model.depth = depth;
  model.stem = stem;
  model.width = 4;
  model.classes = 7;
  return model;
}

/// All weights and running statistics of the model, by torchvision's names.
std::map<std::string, Shape> shapes_of(const Config::Model& model) {
  graph::ParameterTable table;
  graph::Graph graph({.batch = 1}, table);
  resnet(graph, graph.add_activation({.name = "images", .shape = {1, 32, 32, 3}}), model, {});
  std::map<std::string, Shape> out;
  for (const graph::Parameter& p : table.parameters()) out[p.name] = p.shape;
  for (const graph::RunningStatistic& s : table.statistics())
    out[s.name + ".running_mean"] = out[s.name + ".running_var"] = {s.channels};
  return out;
}

onnx::ModelProto exported(const Config::Model& model, const std::map<std::string, Shape>& shapes) {
  const std::string bytes =
      resnet_onnx(model,
                  {.height = 24,
                   .width = 32,
                   .mean = {0.5f, 0.25f, 0.125f},
                   .stddev = {1, 1, 1},
                   .batch_norm_epsilon = 1e-3,
                   .producer_version = "1.2.3",
                   .metadata = {{"key", "text"}}},
                  [&](const std::string& name) {
                    const Shape shape = shapes.at(name);
                    return OnnxTensor{shape, std::vector<float>(static_cast<std::size_t>(shape.n_elements()))};
                  });
  onnx::ModelProto file;
  EXPECT_TRUE(file.ParseFromString(bytes));
  return file;
}

TEST(ResnetOnnx, ContainsTheWholeModel) {
  for (const auto& [depth, stem] : {std::pair{18, "cifar"}, {34, "imagenet"}, {50, "cifar"}, {152, "imagenet"}}) {
    const Config::Model model = model_of(depth, stem);
    const std::map<std::string, Shape> shapes = shapes_of(model);
    const onnx::GraphProto graph = exported(model, shapes).graph();
    std::set<std::string> known = {"image"}, weights;
    for (const onnx::TensorProto& tensor : graph.initializer()) {
      EXPECT_TRUE(known.insert(tensor.name()).second) << tensor.name() << " occurs twice";
      if (shapes.contains(tensor.name())) weights.insert(tensor.name());
    }
    EXPECT_EQ(weights.size(), shapes.size()) << stem << depth;
    for (const onnx::NodeProto& node : graph.node()) {
      for (const std::string& input : node.input())
        EXPECT_TRUE(known.contains(input)) << node.name() << " reads " << input;
      EXPECT_TRUE(known.insert(node.output(0)).second) << node.output(0) << " is computed twice";
    }
    EXPECT_TRUE(known.contains("logits"));
    EXPECT_EQ(std::ranges::count(graph.node(), "MaxPool", &onnx::NodeProto::op_type), stem == std::string("imagenet"));
  }
}

TEST(ResnetOnnx, DescribesItsInputAndOutput) {
  const Config::Model model = model_of(18, "cifar");
  const onnx::ModelProto file = exported(model, shapes_of(model));
  EXPECT_EQ(file.producer_version(), "1.2.3");
  EXPECT_EQ(file.metadata_props(0).value(), "text");
  const auto& input = file.graph().input(0).type().tensor_type().shape();
  EXPECT_EQ(input.dim(0).dim_param(), "N");
  EXPECT_EQ(input.dim(1).dim_value(), 3);
  EXPECT_EQ(input.dim(2).dim_value(), 24);
  EXPECT_EQ(input.dim(3).dim_value(), 32);
  EXPECT_EQ(file.graph().output(0).type().tensor_type().shape().dim(1).dim_value(), 7);
  for (const onnx::NodeProto& node : file.graph().node()) {
    if (node.op_type() == "BatchNormalization") {
      EXPECT_FLOAT_EQ(node.attribute(0).f(), 1e-3f);
    }
  }
}

}  // namespace
}  // namespace lockstep::models

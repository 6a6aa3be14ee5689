// The same wiring as resnet.cpp, in ONNX's operators. Source: the ONNX operator schemas of opset 17.
#include "models/resnet_onnx.h"

#include "lockstep/error.h"
#include "models/onnx.pb.h"
#include "models/resnet_table.h"

namespace lockstep::models {
namespace {

constexpr int kOpset = 17;
constexpr int kIrVersion = 8;  // supported by onnx 1.12 and newer, like opset 17
constexpr const char* kBatch = "N";

/// Adds nodes and their weights to a graph. A value has the name of the node that computes it.
class Builder {
 public:
  Builder(onnx::GraphProto& graph, double epsilon, const std::function<OnnxTensor(const std::string&)>& tensor)
      : graph_(graph), epsilon_(epsilon), tensor_(tensor) {}

  onnx::NodeProto& node(const char* op, const std::string& name, const std::vector<std::string>& inputs) {
    onnx::NodeProto& added = *graph_.add_node();
    added.set_op_type(op);
    added.set_name(name);
    for (const std::string& input : inputs) added.add_input(input);
    added.add_output(name);
    return added;
  }
  /// Adds a weight of the model, and returns its name.
  std::string weight(const std::string& name) {
    const OnnxTensor found = tensor_(name);
    return constant(name, found.shape, found.values);
  }
  std::string constant(const std::string& name, const Shape& shape, std::span<const float> values) {
    onnx::TensorProto& added = *graph_.add_initializer();
    added.set_name(name);
    added.set_data_type(onnx::TensorProto::FLOAT);
    for (int i = 0; i < shape.rank(); ++i) added.add_dims(shape[i]);
    // Little-endian, as the format requires. All processors that this program supports are little-endian too.
    added.set_raw_data(reinterpret_cast<const char*>(values.data()), values.size_bytes());
    return name;
  }

  std::string convolution(const std::string& x, const std::string& name, int kernel_size, int stride, int padding) {
    onnx::NodeProto& conv = node("Conv", name, {x, weight(name + ".weight")});
    set_kernel(conv, kernel_size, stride, padding);
    return name;
  }
  std::string batch_norm(const std::string& x, const std::string& name) {
    onnx::NodeProto& norm = node("BatchNormalization", name,
                                 {x, weight(name + ".weight"), weight(name + ".bias"), weight(name + ".running_mean"),
                                  weight(name + ".running_var")});
    onnx::AttributeProto& epsilon = *norm.add_attribute();
    epsilon.set_name("epsilon");
    epsilon.set_type(onnx::AttributeProto::FLOAT);
    epsilon.set_f(static_cast<float>(epsilon_));
    return name;
  }
  std::string relu(const std::string& x) {
    node("Relu", x + ".relu", {x});
    return x + ".relu";
  }
  std::string max_pool(const std::string& x) {
    set_kernel(node("MaxPool", "maxpool", {x}), 3, 2, 1);
    return "maxpool";
  }
  static void set_integer(onnx::NodeProto& node, const char* name, std::int64_t value) {
    onnx::AttributeProto& attribute = *node.add_attribute();
    attribute.set_name(name);
    attribute.set_type(onnx::AttributeProto::INT);
    attribute.set_i(value);
  }

 private:
  static void set_integers(onnx::NodeProto& node, const char* name, const std::vector<std::int64_t>& values) {
    onnx::AttributeProto& attribute = *node.add_attribute();
    attribute.set_name(name);
    attribute.set_type(onnx::AttributeProto::INTS);
    for (const std::int64_t value : values) attribute.add_ints(value);
  }
  static void set_kernel(onnx::NodeProto& node, int kernel_size, int stride, int padding) {
    set_integers(node, "kernel_shape", {kernel_size, kernel_size});
    set_integers(node, "strides", {stride, stride});
    set_integers(node, "pads", {padding, padding, padding, padding});
  }

  onnx::GraphProto& graph_;
  double epsilon_;
  const std::function<OnnxTensor(const std::string&)>& tensor_;
};

std::string residual_block(Builder& builder, const std::string& x, const std::string& name, bool bottleneck, int stride,
                           bool has_projection) {
  const auto unit = [&](const std::string& in, int number, int kernel_size, int step) {
    const std::string digit = std::to_string(number);
    const std::string y = builder.convolution(in, name + ".conv" + digit, kernel_size, step, kernel_size / 2);
    return builder.batch_norm(y, name + ".bn" + digit);
  };
  std::string y;
  if (bottleneck) {
    y = builder.relu(unit(x, 1, 1, 1));
    y = builder.relu(unit(y, 2, 3, stride));
    y = unit(y, 3, 1, 1);
  } else {
    y = builder.relu(unit(x, 1, 3, stride));
    y = unit(y, 2, 3, 1);
  }
  std::string shortcut = x;
  if (has_projection)
    shortcut = builder.batch_norm(builder.convolution(x, name + ".downsample.0", 1, stride, 0), name + ".downsample.1");
  builder.node("Add", name + ".add", {y, shortcut});
  return builder.relu(name + ".add");
}

void describe_value(onnx::ValueInfoProto& value, const char* name, const std::vector<std::int64_t>& dims) {
  value.set_name(name);
  onnx::TypeProto::Tensor& type = *value.mutable_type()->mutable_tensor_type();
  type.set_elem_type(onnx::TensorProto::FLOAT);
  type.mutable_shape()->add_dim()->set_dim_param(kBatch);
  for (const std::int64_t dim : dims) type.mutable_shape()->add_dim()->set_dim_value(dim);
}

/// (image - mean) / stddev
std::string normalise(Builder& builder, const OnnxOptions& options) {
  if (options.mean.empty()) return "image";
  const Shape per_channel{static_cast<std::int64_t>(options.mean.size()), 1, 1};
  builder.node("Sub", "input.centred", {"image", builder.constant("input.mean", per_channel, options.mean)});
  builder.node("Div", "input", {"input.centred", builder.constant("input.std", per_channel, options.stddev)});
  return "input";
}

}  // namespace

std::string resnet_onnx(const Config::Model& model, const OnnxOptions& options,
                        const std::function<OnnxTensor(const std::string& name)>& tensor) {
  const ResnetDepth& table = resnet_depth(model.depth);
  const bool imagenet = model.stem == "imagenet";
  onnx::ModelProto file;
  file.set_ir_version(kIrVersion);
  file.set_producer_name("lockstep");
  file.set_producer_version(options.producer_version);
  file.add_opset_import()->set_version(kOpset);
  for (const auto& [key, value] : options.metadata) {
    onnx::StringStringEntryProto& entry = *file.add_metadata_props();
    entry.set_key(key);
    entry.set_value(value);
  }
  onnx::GraphProto& graph = *file.mutable_graph();
  graph.set_name(model.family + std::to_string(model.depth));
  describe_value(*graph.add_input(), "image", {tensor("conv1.weight").shape[1], options.height, options.width});
  describe_value(*graph.add_output(), "logits", {model.classes});

  Builder builder(graph, options.batch_norm_epsilon, tensor);
  std::string x = normalise(builder, options);
  x = imagenet ? builder.convolution(x, "conv1", 7, 2, 3) : builder.convolution(x, "conv1", 3, 1, 1);
  x = builder.relu(builder.batch_norm(x, "bn1"));
  if (imagenet) x = builder.max_pool(x);
  for (std::size_t stage = 0; stage < table.blocks.size(); ++stage)
    for (int i = 0; i < table.blocks[stage]; ++i) {
      const int stride = stage > 0 && i == 0 ? 2 : 1;
      const std::string name = "layer" + std::to_string(stage + 1) + "." + std::to_string(i);
      // Only the first block of the first stage of a network without bottlenecks keeps its channels.
      const bool has_projection = i == 0 && (stage > 0 || table.bottleneck);
      x = residual_block(builder, x, name, table.bottleneck, stride, has_projection);
    }
  builder.node("GlobalAveragePool", "avgpool", {x});
  Builder::set_integer(builder.node("Flatten", "flatten", {"avgpool"}), "axis", 1);
  Builder::set_integer(
      builder.node("Gemm", "logits", {"flatten", builder.weight("fc.weight"), builder.weight("fc.bias")}), "transB", 1);

  std::string bytes;
  require(file.SerializeToString(&bytes), ErrorCode::not_supported,
          "a model of more than 2 GiB cannot be stored in one .onnx file");
  return bytes;
}

}  // namespace lockstep::models

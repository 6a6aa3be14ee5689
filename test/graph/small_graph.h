// A graph with its own memory, on a backend that uses host memory: an input, layers, and a loss that is the weighted
// sum of the output, sum_i r_i y_i, so that the gradient of the output is r.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "graph/graph.h"
#include "graph/step_list.h"
#include "layers/layers.h"
#include "lockstep/backend.h"
#include "test/support/tensor.h"

namespace lockstep::test {

/// Values as tensors of this type store them.
inline std::vector<std::byte> bytes_of(DType dtype, const std::vector<float>& values) {
  std::vector<std::byte> out(values.size() * size_bytes(dtype));
  if (dtype == DType::fp32)
    std::memcpy(out.data(), values.data(), out.size());
  else
    std::memcpy(out.data(), bf16_bits(values).data(), out.size());
  return out;
}

inline std::vector<float> values_of(DType dtype, const void* data, std::size_t n) {
  if (dtype == DType::fp32) return {static_cast<const float*>(data), static_cast<const float*>(data) + n};
  const auto* bits = static_cast<const std::uint16_t*>(data);
  return from_bf16_bits({bits, bits + n});
}

/// The test sets its output, which is a persistent tensor.
class GivenNode final : public graph::Node {
 public:
  GivenNode(graph::ActivationId out, std::vector<std::byte> values)
      : Node("given", {}, {out}), out_(out), values_(std::move(values)) {}
  void plan(graph::Graph& graph, Backend&) override { y_ = graph.make_data(out_, *this); }
  void forward(const graph::Run& run) override { std::memcpy(run.tensor(y_), values_.data(), values_.size()); }

 private:
  graph::ActivationId out_;
  std::vector<std::byte> values_;
  graph::TensorId y_ = graph::kNoTensor;
};

/// Stores its input where a test can read it, and sets its gradient to r.
class ProbeNode final : public graph::Node {
 public:
  explicit ProbeNode(graph::ActivationId in) : Node("probe", {in}, {}), in_(in) {}
  void plan(graph::Graph& graph, Backend&) override {
    const graph::Activation& x = graph.activation(in_);
    dtype_ = x.dtype;
    n_ = static_cast<std::size_t>(x.shape.n_elements());
    r_ = bytes_of(dtype_, random_normal(x.shape.n_elements(), 99));
    x_ = graph.data_of(in_, *this);
  }
  void plan_backward(graph::Graph& graph) override { dx_ = graph.gradient_target(in_, *this).tensor; }
  void forward(const graph::Run& run) override { output = values_of(dtype_, run.tensor(x_), n_); }
  void backward(const graph::Run& run) override {
    if (dx_ != graph::kNoTensor) std::memcpy(run.tensor(dx_), r_.data(), r_.size());
  }
  graph::Recomputation recomputation() const override { return graph::Recomputation::forbidden; }
  std::vector<float> weights() const { return values_of(dtype_, r_.data(), n_); }

  std::vector<float> output;

 private:
  graph::ActivationId in_;
  DType dtype_ = DType::fp32;
  std::size_t n_ = 0;
  std::vector<std::byte> r_;
  graph::TensorId x_ = graph::kNoTensor, dx_ = graph::kNoTensor;
};

class SmallGraph {
 public:
  /// Adds nodes from the input to the output, whose gradient is r.
  using Build = std::function<graph::ActivationId(graph::Graph&, graph::ActivationId)>;

  SmallGraph(Backend& backend, const Shape& input, const Build& build, DType dtype = DType::fp32,
             graph::Mode mode = graph::Mode::train)
      : backend_(backend), stream_(backend.make_stream()) {
    graph_ = std::make_unique<graph::Graph>(
        graph::GraphOptions{.mode = mode, .dtype = dtype, .batch = input[0], .layout_batch = input[0]}, table_);
    const graph::ActivationId x = graph_->add_activation({.name = "given", .shape = input, .dtype = dtype});
    input_ = rounded_to(dtype, random_normal(input.n_elements(), 7));
    graph_->add_node<GivenNode>(x, bytes_of(dtype, input_));
    probe_ = &graph_->add_node<ProbeNode>(build(*graph_, x));
    graph_->plan(backend);
    const auto floats = [&](std::size_t n) {
      return backend.allocate(std::max<std::size_t>(n, 1) * sizeof(float), "test");
    };
    parameters_ = floats(table_.n_total());
    weights_ = floats(table_.n_total());
    gradients_ = floats(table_.n_gradients());
    activations_ = backend.allocate(std::max<std::size_t>(graph_->memory().size_bytes(), 64), "test");
    workspace_ = backend.allocate(std::max<std::size_t>(graph_->workspace_bytes(), 64), "test");
    exchange_ = backend.allocate(std::max<std::size_t>(graph_->exchange_bytes(), 64), "test");
    std::memset(activations_->data(), 0xff, activations_->size_bytes());  // NaN: nothing is read before it is written
    graph_->bind({.parameters = arena(*parameters_),
                  .compute_weights = dtype == DType::fp32 ? nullptr : weights_->data(),
                  .compute_dtype = dtype,
                  .exchange = static_cast<std::byte*>(exchange_->data()),
                  .activations = static_cast<std::byte*>(activations_->data()),
                  .workspace = workspace_->data(),
                  .scalars = &scalars_});
    for (const graph::Parameter& p : table_.parameters()) set(p.name, table_.initial_values(p, 3));
    for (const graph::Constant& c : table_.constants())
      std::memcpy(arena(*parameters_) + c.begin, c.values.data(), c.values.size() * sizeof(float));
    for (const graph::RunningStatistic& s : table_.statistics())
      for (std::int64_t c = 0; c < s.channels; ++c) {
        arena(*parameters_)[s.begin + static_cast<std::size_t>(c)] = 0.1f;
        arena(*parameters_)[s.begin + static_cast<std::size_t>(s.channels + c)] = 0.5f;
      }
  }

  void set(const std::string& name, const std::vector<float>& canonical) {
    const graph::Parameter& p = parameter(name);
    const std::vector<float> packed = graph::pack(p, canonical);
    std::memcpy(arena(*parameters_) + p.begin, packed.data(), packed.size() * sizeof(float));
    const DType dtype = graph_->options().dtype;
    const std::vector<std::byte> rounded = bytes_of(dtype, packed);
    std::memcpy(static_cast<std::byte*>(weights_->data()) + p.begin * size_bytes(dtype), rounded.data(),
                rounded.size());
  }
  /// Fills the fp32 masters, but not the weights that ops read in another type.
  void fill_masters(float value) { std::fill_n(arena(*parameters_), table_.n_total(), value); }
  std::vector<float> get(const std::string& name) const { return unpacked(name, *parameters_); }
  std::vector<float> gradient(const std::string& name) const { return unpacked(name, *gradients_); }

  /// sum_i r_i y_i, in double.
  double forward() {
    list(graph_->order().n_forward()).queue(*stream_, {gradients(), GradientMode::overwrite});
    stream_->synchronize();
    const std::vector<float> r = probe_->weights();
    double loss = 0;
    for (std::size_t i = 0; i < r.size(); ++i) loss += double{r[i]} * probe_->output[i];
    return loss;
  }
  /// Runs one micro-batch: forward and backward. Returns the names of the parameters in the order in which they are
  /// finished.
  std::vector<std::string> run(GradientMode mode = GradientMode::overwrite) {
    std::vector<std::string> finished;
    list(graph_->order().entries().size()).queue(*stream_, {gradients(), mode});
    stream_->synchronize();
    for (const graph::Entry& entry : graph_->order().entries())
      if (entry.phase == graph::Phase::backward)
        for (const graph::ParameterId id : graph_->finished_by(entry.node)) finished.push_back(table_[id].name);
    return finished;
  }

  graph::Graph& graph() { return *graph_; }
  StepScalars& scalars() { return scalars_; }
  const graph::ParameterTable& table() const { return table_; }
  const std::vector<float>& input() const { return input_; }
  const std::vector<float>& output() const { return probe_->output; }
  std::vector<float> output_gradient() const { return probe_->weights(); }
  graph::GradientArena gradients() const {
    return {static_cast<std::byte*>(gradients_->data()), {.n_elements = table_.n_gradients()}};
  }
  /// The whole gradient arena, including statistics.
  std::vector<float> gradient_arena() const { return {arena(*gradients_), arena(*gradients_) + table_.n_gradients()}; }
  void fill_gradients(float value) { std::fill_n(arena(*gradients_), table_.n_gradients(), value); }

 private:
  graph::StepList list(std::size_t n_entries) {
    graph::StepList list(graph_.get());
    for (std::size_t i = 0; i < n_entries; ++i) list.add_entry(i);
    list.add_join_of_all();
    list.bind(backend_, graph_->bindings().communicator);
    return list;
  }
  static float* arena(const Memory& memory) { return static_cast<float*>(memory.data()); }
  const graph::Parameter& parameter(const std::string& name) const {
    for (const graph::Parameter& p : table_.parameters())
      if (p.name == name) return p;
    throw std::runtime_error("no parameter " + name);
  }
  std::vector<float> unpacked(const std::string& name, const Memory& memory) const {
    const graph::Parameter& p = parameter(name);
    std::vector<float> out(static_cast<std::size_t>(p.shape.n_elements()));
    graph::unpack(p, {arena(memory) + p.begin, p.n_elements}, out);
    return out;
  }

  Backend& backend_;
  std::unique_ptr<Stream> stream_;
  graph::ParameterTable table_;
  std::unique_ptr<graph::Graph> graph_;
  StepScalars scalars_;
  ProbeNode* probe_ = nullptr;
  std::vector<float> input_;
  std::unique_ptr<Memory> parameters_, weights_, gradients_, activations_, workspace_, exchange_;
};

/// Compares the gradient of each parameter, along a random direction, with a central difference. The loss is a sum of
/// some hundred outputs of order 1 that are rounded to fp32, so its error is about 1e-6. With a step of 1e-2, the
/// rounding error of the central difference is about 1e-4; its other error is the term with the third derivative.
/// `stream` selects the random directions.
inline void expect_gradients_of_finite_differences(SmallGraph& graph, std::uint32_t stream) {
  graph.run();
  constexpr double kStep = 1e-2;
  for (const graph::Parameter& p : graph.table().parameters()) {
    const std::vector<float> values = graph.get(p.name), gradient = graph.gradient(p.name);
    const std::vector<float> direction = random_normal(p.shape.n_elements(), stream++);
    double length = 0, slope = 0;
    for (const float d : direction) length += double{d} * d;
    length = std::sqrt(length);
    for (std::size_t i = 0; i < direction.size(); ++i) slope += gradient[i] * direction[i] / length;
    const auto loss_at = [&](double step) {
      std::vector<float> moved = values;
      for (std::size_t i = 0; i < moved.size(); ++i) moved[i] += static_cast<float>(step * direction[i] / length);
      graph.set(p.name, moved);
      return graph.forward();
    };
    const double difference = (loss_at(kStep) - loss_at(-kStep)) / (2 * kStep);
    graph.set(p.name, values);
    EXPECT_NEAR(slope, difference, 2e-3 * std::max(1.0, std::abs(slope))) << p.name;
    EXPECT_GT(std::ranges::max(gradient) - std::ranges::min(gradient), 0) << p.name;
  }
}

}  // namespace lockstep::test

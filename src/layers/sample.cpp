#include "lockstep/ops/sample.h"

#include "graph/graph.h"
#include "layers/layers.h"
#include "lockstep/error.h"

namespace lockstep::layers {

namespace {

using namespace graph;  // NOLINT(google-build-using-namespace): a node uses little else

class SampleNode final : public Node {
 public:
  SampleNode(std::string name, ActivationId logits, const SampleOptions& options)
      : Node(std::move(name), {logits}, {}), in_(logits), options_(options) {}

  void plan(Graph& graph, Backend& backend) override {
    const Activation& logits = graph.activation(in_);
    require(!graph.training() && logits.dtype == DType::fp32, ErrorCode::internal,
            "{}: tokens are drawn from fp32 logits, and not in training", name());
    op_ = backend.make(SampleDescription{.sequences = options_.sequences, .vocabulary = logits.shape.last()});
    logits_ = graph.data_of(in_, *this);
  }

  void forward(const Run& run) override {
    op_->forward({.logits = run.tensor<const float>(logits_),
                  .settings = run.tensor<const Sample::Settings>(options_.settings),
                  .sequences = run.tensor<SampledSequence>(options_.of_each),
                  .occurred = run.tensor<std::uint32_t>(options_.occurred),
                  .ids = run.tensor<std::int32_t>(options_.ids),
                  .positions = run.tensor<std::int32_t>(options_.positions)},
                 memory(run), run.stream);
  }

  std::vector<const Op*> ops() const override { return {op_.get()}; }

 private:
  ActivationId in_;
  SampleOptions options_;
  std::unique_ptr<Sample> op_;
  TensorId logits_ = kNoTensor;
};

}  // namespace

void sample(Graph& graph, ActivationId logits, const std::string& name, const SampleOptions& options) {
  graph.add_node<SampleNode>(name, logits, options);
}

}  // namespace lockstep::layers

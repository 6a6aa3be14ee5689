#include "lockstep/ops/cached_attention.h"

#include <algorithm>

#include "graph/graph.h"
#include "layers/layers.h"
#include "lockstep/error.h"

namespace lockstep::layers {

namespace {

using namespace graph;  // NOLINT(google-build-using-namespace): a node uses little else

class CachedAttentionNode final : public Node, public CountsFlops {
 public:
  CachedAttentionNode(std::string name, ActivationId qkv, ActivationId y, const CachedAttentionOptions& options)
      : Node(std::move(name), {qkv}, {y}), in_(qkv), out_(y), options_(options) {}

  void plan(Graph& graph, Backend& backend) override {
    require(!graph.training(), ErrorCode::internal, "{}: attention over a cache has no gradient", name());
    const graph::Activation& x = graph.activation(in_);
    const AttentionOptions& a = options_.attention;
    description_ = {.rows = x.shape.n_elements() / x.shape.last(),
                    .slots = options_.slots,
                    .capacity = options_.capacity,
                    .heads = a.heads,
                    .kv_heads = a.kv_heads,
                    .head_dim = a.head_dim,
                    .dtype = x.dtype,
                    .scale = a.scale,
                    .window = a.window};
    op_ = backend.make(description_);
    cache_ = graph.add_cache(description_.cache_bytes());
    x_ = graph.data_of(in_, *this);
    y_ = graph.make_data(out_, *this);
  }

  void forward(const Run& run) override {
    op_->forward({.qkv = run.tensor(x_),
                  .slot = run.tensor<const std::int32_t>(options_.slot),
                  .position = run.tensor<const std::int32_t>(options_.positions),
                  .cache_indirection = run.tensor<const std::int32_t>(options_.cache_indirection),
                  .cache = run.at.cache + cache_,
                  .y = run.tensor(y_)},
                 memory(run), run.stream);
  }

  std::vector<const Op*> ops() const override { return {op_.get()}; }
  /// Assumes that tokens attend to half of the capacity or to the window, since their positions are not known.
  Flops flops() const override {
    const auto d = [](std::int64_t n) { return static_cast<double>(n); };
    const double half = (d(description_.capacity) + 1) / 2;
    const double pairs =
        d(description_.rows) * (description_.window > 0 ? std::min(half, d(description_.window)) : half);
    return {.forward = 2 * 2.0 * pairs * d(description_.heads * description_.head_dim), .passes = 1};
  }

 private:
  ActivationId in_, out_;
  CachedAttentionOptions options_;
  CachedAttentionDescription description_;
  std::unique_ptr<CachedAttention> op_;
  std::size_t cache_ = 0;  // the offset of this layer's keys and values in the cache, in bytes
  TensorId x_ = kNoTensor, y_ = kNoTensor;
};

}  // namespace

ActivationId cached_attention(Graph& graph, ActivationId qkv, const std::string& name,
                              const CachedAttentionOptions& options) {
  const graph::Activation& x = graph.activation(qkv);
  const AttentionOptions& a = options.attention;
  require(x.shape.last() == (a.heads + 2 * a.kv_heads) * a.head_dim, ErrorCode::internal,
          "{}: a row of {} does not consist of {} query, {} key and {} value heads of {} elements", name,
          x.shape.text(), a.heads, a.kv_heads, a.kv_heads, a.head_dim);
  const ActivationId y =
      graph.add_activation({.name = name, .shape = x.shape.with_dimension(-1, a.heads * a.head_dim), .dtype = x.dtype});
  graph.add_node<CachedAttentionNode>(name, qkv, y, options);
  return y;
}

}  // namespace lockstep::layers

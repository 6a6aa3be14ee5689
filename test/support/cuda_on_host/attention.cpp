// What cuDNN does on a device (kernels/cuda/attention_bare.h), as plain loops in double, rounded to the tensors' type.
#include <cmath>
#include <vector>

#include "kernels/cuda/attention_bare.h"
#include "kernels/cuda/base/numbers.h"

namespace lockstep::cuda {
namespace {

using Index = std::int64_t;

class HostAttention final : public PlannedAttention {
 public:
  HostAttention(AttentionGraph graph, const AttentionShape& shape) : graph_(graph), s_(shape), d_(s_.whole) {}
  /// As on a device, a deterministic backward pass needs workspace in proportion to samples and heads.
  std::size_t workspace_bytes() const override {
    return graph_ == AttentionGraph::deterministic_backward ? 1024 * static_cast<std::size_t>(s_.samples * s_.kv_heads)
                                                            : 64;
  }
  std::string plan() const override { return "loops"; }

  void run(const AttentionTensors& t, void* workspace, Stream&) override {
    static_cast<float*>(workspace)[workspace_bytes() / sizeof(float) - 1] = NAN;  // checks that the workspace exists
    dispatch(d_.dtype, [&](auto* type) {
      using T = std::remove_pointer_t<decltype(type)>;
      for (Index i = 0; i < (s_.is_ragged() ? s_.documents() : s_.samples); ++i) {
        const Sequence sequence = sequence_of(t, i);
        for (Index head = 0; head < s_.heads(); ++head) compute<T>(t, sequence, head);
        if (is_backward()) store_key_gradients<T>(t, sequence);
      }
    });
  }

 private:
  struct Sequence {
    Index length, qkv, y, log_sum_exp,
        row;  // elements at which it begins; `row`: stride between tokens' statistics
    Index head_statistic;
    Index sample = 0;  // of the mask
  };
  bool is_backward() const {
    return graph_ == AttentionGraph::backward || graph_ == AttentionGraph::deterministic_backward;
  }
  Sequence sequence_of(const AttentionTensors& t, Index i) const {
    if (s_.is_ragged())
      return {t.documents.length[i],
              t.documents.qkv_offset[i],
              t.documents.y_offset[i],
              t.documents.log_sum_exp_offset != nullptr ? t.documents.log_sum_exp_offset[i] : 0,
              d_.heads,
              1};
    const Index tokens = i * d_.sequence;
    return {d_.sequence,
            tokens * d_.packed_width(),
            tokens * d_.heads * d_.head_dim,
            tokens * s_.heads(),
            1,
            d_.sequence,
            i};
  }
  template <typename T>
  double at(const void* tensor, Index element) const {
    return to_float(static_cast<const T*>(tensor)[element]);
  }
  template <typename T>
  void put(void* tensor, Index element, double value) const {
    static_cast<T*>(tensor)[element] = from_float<T>(static_cast<float>(value));
  }

  template <typename T>
  void compute(const AttentionTensors& t, const Sequence& sequence, Index head) {
    const Index dim = d_.head_dim, packed = d_.packed_width(), width = d_.heads * dim, kv = head / d_.group();
    const auto product = [&](const void* a, Index a_at, const void* b, Index b_at) {
      double sum = 0;
      for (Index c = 0; c < dim; ++c) sum += at<T>(a, a_at + c) * at<T>(b, b_at + c);
      return sum;
    };
    const auto key_at = [&](Index s) { return sequence.qkv + s * packed + kv * dim; };
    if (is_backward() && head == 0) {
      dk_.assign(static_cast<std::size_t>(sequence.length * s_.kv_heads * dim), 0);
      dv_ = dk_;
    }
    for (Index token = 0; token < sequence.length; ++token) {
      const Index q = sequence.qkv + token * packed + head * dim, y = sequence.y + token * width + head * dim;
      std::vector<double> p;
      for (Index s = 0; s <= token; ++s) {
        const bool is_seen = d_.window == 0 || s > token - d_.window;
        const double mask = t.mask ? at<T>(t.mask, (sequence.sample * d_.sequence + token) * d_.sequence + s) : 0.0;
        p.push_back(is_seen ? d_.score_scale() * product(t.q, q, t.k, key_at(s)) + mask : -INFINITY);
      }
      float unused = 0;
      float& log_sum_exp =
          t.log_sum_exp == nullptr
              ? unused
              : t.log_sum_exp[sequence.log_sum_exp + token * sequence.row + head * sequence.head_statistic];
      if (is_backward()) {
        backward<T>(t, token, head, key_at, p, log_sum_exp, q, y);
        continue;
      }
      double greatest = p[0], sum = 0;
      for (const double score : p) greatest = std::max(greatest, score);
      for (const double score : p) sum += std::exp(score - greatest);
      log_sum_exp = static_cast<float>(greatest + std::log(sum));
      for (Index c = 0; c < dim; ++c) {
        double value = 0;
        for (Index s = 0; s <= token; ++s)
          value += std::exp(p[static_cast<std::size_t>(s)] - greatest) / sum * at<T>(t.v, key_at(s) + c);
        put<T>(t.y, y + c, value);
      }
    }
  }

  template <typename T, typename KeyAt>
  void backward(const AttentionTensors& t, Index token, Index head, const KeyAt& key_at,
                const std::vector<double>& scores, double log_sum_exp, Index q, Index y) {
    const Index dim = d_.head_dim, kv = head / d_.group();
    double delta = 0;
    for (Index c = 0; c < dim; ++c) delta += at<T>(t.y, y + c) * at<T>(t.dy, y + c);
    std::vector<double> dq(static_cast<std::size_t>(dim));
    for (Index s = 0; s <= token; ++s) {
      const double p = std::exp(scores[static_cast<std::size_t>(s)] - log_sum_exp);
      double dp = 0;
      for (Index c = 0; c < dim; ++c) dp += at<T>(t.dy, y + c) * at<T>(t.v, key_at(s) + c);
      const double dscore = d_.score_scale() * p * (dp - delta);
      for (Index c = 0; c < dim; ++c) {
        const auto i = static_cast<std::size_t>((s * s_.kv_heads + kv) * dim + c);
        dq[static_cast<std::size_t>(c)] += dscore * at<T>(t.k, key_at(s) + c);
        dk_[i] += dscore * at<T>(t.q, q + c);
        dv_[i] += p * at<T>(t.dy, y + c);
      }
    }
    for (Index c = 0; c < dim; ++c) put<T>(t.dq, q + c, dq[static_cast<std::size_t>(c)]);
  }

  template <typename T>
  void store_key_gradients(const AttentionTensors& t, const Sequence& sequence) const {
    const Index width = s_.kv_heads * d_.head_dim;
    for (Index i = 0; i < sequence.length * width; ++i) {
      const Index element = sequence.qkv + i / width * d_.packed_width() + i % width;
      put<T>(t.dk, element, dk_[static_cast<std::size_t>(i)]);
      put<T>(t.dv, element, dv_[static_cast<std::size_t>(i)]);
    }
  }

  AttentionGraph graph_;
  AttentionShape s_;
  AttentionDescription d_;
  std::vector<double> dk_, dv_;  // for one sequence: (tokens, kv heads, head_dim)
};

}  // namespace

/// Small enough that the backward pass must be divided.
std::size_t attention_workspace_limit(const CudaContext&) { return 2048; }

std::unique_ptr<PlannedAttention> plan_attention(AttentionGraph graph, const AttentionShape& shape,
                                                 const CudaContext& context) {
  if (!may_have_plan(shape, context.compute_capability)) return nullptr;
  return std::make_unique<HostAttention>(graph, shape);
}

}  // namespace lockstep::cuda

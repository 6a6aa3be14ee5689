// Attention, straight from the formulas of lockstep/ops/attention.h: every score of a row of tokens is computed, and
// the softmax is taken over them. `T` is the stored type (float: the ReferenceBackend; double: finite differences); all
// intermediate values are double.
#pragma once

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/ops/attention.h"
#include "test/reference/normalization.h"
#include "test/reference/ops.h"

namespace lockstep::reference {

/// The packed matrix of one sample.
template <typename T>
struct PackedSample {
  const AttentionDescription& d;
  T* data;

  T* q(Index token, Index head) const { return data + token * d.packed_width() + head * d.head_dim; }
  T* k(Index token, Index head) const { return q(token, d.heads + head / d.group()); }
  T* v(Index token, Index head) const { return q(token, d.heads + d.kv_heads + head / d.group()); }
};

template <typename T>
struct AttentionBackward {
  const T* qkv = nullptr;
  const std::int32_t* document_start = nullptr;
  const T* dy = nullptr;
  T* dqkv = nullptr;
};

/// The dot product of two vectors, or the sum of the absolute values of its terms.
template <typename A, typename B>
double dot(const A* a, const B* b, Index n, bool absolute = false) {
  double sum = 0;
  for (Index i = 0; i < n; ++i) sum += absolute ? std::abs(double{a[i]} * b[i]) : double{a[i]} * b[i];
  return sum;
}

/// p of one token and head, for the tokens [first, token].
template <typename T>
std::vector<double> probabilities(const PackedSample<const T>& x, Index token, Index head, Index first) {
  std::vector<double> p;
  for (Index s = first; s <= token; ++s)
    p.push_back(double{x.d.score_scale()} * dot(x.q(token, head), x.k(s, head), x.d.head_dim));
  const double greatest = *std::max_element(p.begin(), p.end());
  double sum = 0;
  for (double& value : p) sum += value = std::exp(value - greatest);
  for (double& value : p) value /= sum;
  return p;
}

/// Calls f(sample, token, head, first token of the token's document, p).
template <typename T, typename F>
void for_each_query(const AttentionDescription& d, const T* qkv, const std::int32_t* document_start, const F& f) {
  for (Index b = 0; b < d.batch; ++b) {
    const PackedSample<const T> x{d, qkv + b * d.sequence * d.packed_width()};
    for (Index t = 0; t < d.sequence; ++t) {
      const Index of_document = document_start == nullptr ? 0 : document_start[b * d.sequence + t];
      const Index first = d.window == 0 ? of_document : std::max(of_document, t - d.window + 1);
      for (Index h = 0; h < d.heads; ++h) f(b, x, t, h, first, probabilities(x, t, h, first));
    }
  }
}

template <typename T>
void attention_forward(const AttentionDescription& d, const T* qkv, const std::int32_t* document_start, T* y) {
  for_each_query(d, qkv, document_start,
                 [&](Index b, const PackedSample<const T>& x, Index t, Index h, Index first, const auto& p) {
                   for (Index c = 0; c < d.head_dim; ++c) {
                     double sum = 0;
                     for (Index s = first; s <= t; ++s) sum += p[static_cast<std::size_t>(s - first)] * x.v(s, h)[c];
                     y[((b * d.sequence + t) * d.heads + h) * d.head_dim + c] = static_cast<T>(sum);
                   }
                 });
}

/// `absolute`: computes the same sums with the absolute values of their terms, which bound the rounding errors.
template <typename T>
void attention_backward(const AttentionDescription& d, const AttentionBackward<T>& args, bool absolute = false) {
  const double scale = d.score_scale();
  std::vector<double> gradients(static_cast<std::size_t>(d.batch * d.sequence * d.packed_width()));
  const auto term = [&](double value) { return absolute ? std::abs(value) : value; };
  for_each_query(d, args.qkv, args.document_start,
                 [&](Index b, const PackedSample<const T>& x, Index t, Index h, Index first, const auto& p) {
                   const PackedSample<double> dx{d, gradients.data() + b * d.sequence * d.packed_width()};
                   const T* const dy = args.dy + ((b * d.sequence + t) * d.heads + h) * d.head_dim;
                   double delta = 0;  // y . dy
                   for (Index s = first; s <= t; ++s)
                     delta += p[static_cast<std::size_t>(s - first)] * dot(dy, x.v(s, h), d.head_dim, absolute);
                   for (Index s = first; s <= t; ++s) {
                     const double p_s = p[static_cast<std::size_t>(s - first)];
                     const double product = dot(dy, x.v(s, h), d.head_dim, absolute);
                     const double dscore = scale * p_s * (absolute ? product + delta : product - delta);
                     for (Index c = 0; c < d.head_dim; ++c) {
                       dx.q(t, h)[c] += term(dscore * x.k(s, h)[c]);
                       dx.k(s, h)[c] += term(dscore * x.q(t, h)[c]);
                       dx.v(s, h)[c] += term(p_s * dy[c]);
                     }
                   }
                 });
  for (std::size_t i = 0; i < gradients.size(); ++i) args.dqkv[i] = static_cast<T>(gradients[i]);
}

class ReferenceAttention final : public Attention {
 public:
  explicit ReferenceAttention(const AttentionDescription& d) : d_(d) {}
  std::string describe() const override { return "reference"; }

  void run_forward(const Forward& args, const OpMemory&, Stream&) override {
    attention_forward(d_, static_cast<const float*>(args.qkv), args.document_start, static_cast<float*>(args.y));
  }
  void run_backward(const Backward& args, const OpMemory&, Stream&) override {
    attention_backward<float>(d_, {static_cast<const float*>(args.qkv), args.document_start,
                                   static_cast<const float*>(args.dy), static_cast<float*>(args.dqkv)});
  }

 private:
  AttentionDescription d_;
};

inline std::unique_ptr<Attention> make_attention(const AttentionDescription& d, const Context&) {
  return std::make_unique<ReferenceAttention>(d);
}

}  // namespace lockstep::reference

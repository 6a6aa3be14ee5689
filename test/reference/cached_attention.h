// Attention over a cache, straight from the formula of lockstep/ops/cached_attention.h. `T` is the stored type; all
// intermediate values are double.
#pragma once

#include <algorithm>
#include <cmath>
#include <memory>
#include <vector>

#include "lockstep/ops/cached_attention.h"
#include "test/reference/normalization.h"
#include "test/reference/ops.h"

namespace lockstep::reference {

template <typename T>
struct CachedAttentionForward {
  const T* qkv = nullptr;
  const std::int32_t *slot = nullptr, *position = nullptr, *cache_indirection = nullptr;
  T* cache = nullptr;
  T* y = nullptr;
};

/// `absolute`: y becomes the same sum with the absolute values of its terms, which bounds the rounding errors.
template <typename T>
void cached_attention_forward(const CachedAttentionDescription& d, const CachedAttentionForward<T>& args,
                              bool absolute = false) {
  const auto exists = [&](Index r) {
    return args.slot[r] >= 0 && args.slot[r] < d.slots && args.position[r] >= 0 && args.position[r] < d.capacity;
  };
  const auto k_at = [&](Index slot, Index head, Index position) {
    return args.cache + ((slot * d.kv_heads + head) * d.capacity + position) * d.head_dim;
  };
  const auto v_at = [&](Index slot, Index head, Index position) {
    return k_at(slot, head, position) + d.cached_elements();
  };
  for (Index r = 0; r < d.rows; ++r)
    for (Index g = 0; exists(r) && g < d.kv_heads; ++g)
      for (Index c = 0; c < d.head_dim; ++c) {
        const T* const k = args.qkv + r * d.packed_width() + (d.heads + g) * d.head_dim;
        k_at(args.slot[r], g, args.position[r])[c] = k[c];
        v_at(args.slot[r], g, args.position[r])[c] = k[d.kv_heads * d.head_dim + c];
      }
  for (Index r = 0; r < d.rows; ++r)
    for (Index h = 0; h < d.heads; ++h) {
      T* const y = args.y + (r * d.heads + h) * d.head_dim;
      std::fill_n(y, d.head_dim, T{});
      if (!exists(r)) continue;
      const T* const q = args.qkv + r * d.packed_width() + h * d.head_dim;
      const Index own = args.slot[r], p = args.position[r], g = h / d.group();
      std::vector<double> weights;
      std::vector<Index> slots;
      const Index first = d.window == 0 ? 0 : std::max<Index>(0, p - d.window + 1);
      for (Index s = first; s <= p; ++s) {
        const Index given = args.cache_indirection[own * d.capacity + s];
        slots.push_back(s == p || given < 0 || given >= d.slots ? own : given);
        double score = 0;
        for (Index c = 0; c < d.head_dim; ++c) score += double{q[c]} * k_at(slots.back(), g, s)[c];
        weights.push_back(score * d.score_scale());
      }
      const double greatest = *std::ranges::max_element(weights);
      double total = 0;
      for (double& w : weights) total += w = std::exp(w - greatest);
      for (Index c = 0; c < d.head_dim; ++c) {
        double sum = 0;
        for (Index s = first; s <= p; ++s) {
          const auto i = static_cast<std::size_t>(s - first);
          const double term = weights[i] / total * v_at(slots[i], g, s)[c];
          sum += absolute ? std::abs(term) : term;
        }
        y[c] = static_cast<T>(sum);
      }
    }
}

class ReferenceCachedAttention final : public CachedAttention {
 public:
  explicit ReferenceCachedAttention(const CachedAttentionDescription& d) : d_(d) {}
  std::string describe() const override { return "reference"; }
  void run_forward(const Forward& args, const OpMemory&, Stream&) override {
    cached_attention_forward<float>(
        d_, {static_cast<const float*>(args.qkv), args.slot, args.position, args.cache_indirection,
             static_cast<float*>(args.cache), static_cast<float*>(args.y)});
  }

 private:
  CachedAttentionDescription d_;
};

inline std::unique_ptr<CachedAttention> make_cached_attention(const CachedAttentionDescription& d, const Context&) {
  require(d.dtype == DType::fp32, ErrorCode::not_supported, "the reference attention computes only in fp32");
  return std::make_unique<ReferenceCachedAttention>(d);
}

}  // namespace lockstep::reference

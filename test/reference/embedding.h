// Embedding, straight from the formulas of lockstep/ops/embedding.h. `T` is the stored type (float: the
// ReferenceBackend; double: finite differences).
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "lockstep/ops/embedding.h"
#include "test/reference/identity_layout.h"
#include "test/reference/normalization.h"
#include "test/reference/ops.h"

namespace lockstep::reference {

template <typename T>
void embedding_forward(const EmbeddingDescription& d, const std::int32_t* ids, const T* weight, T* y) {
  for (Index row = 0; row < d.rows; ++row)
    for (Index c = 0; c < d.width; ++c) {
      const Index id = ids[row];
      y[row * d.width + c] =
          id >= 0 && id < d.vocabulary ? static_cast<T>(double{d.scale} * weight[id * d.width + c]) : T{};
    }
}

template <typename T>
void embedding_backward(const EmbeddingDescription& d, const std::int32_t* ids, const T* dy, T* dweight,
                        GradientMode mode) {
  std::vector<double> sums(static_cast<std::size_t>(d.vocabulary * d.width));
  for (Index row = 0; row < d.rows; ++row) {
    const Index id = ids[row];
    if (id < 0 || id >= d.vocabulary) continue;
    for (Index c = 0; c < d.width; ++c)
      sums[static_cast<std::size_t>(id * d.width + c)] += double{d.scale} * dy[row * d.width + c];
  }
  for (std::size_t i = 0; i < sums.size(); ++i) put(dweight[i], sums[i], mode);
}

class ReferenceEmbedding final : public Embedding {
 public:
  explicit ReferenceEmbedding(const EmbeddingDescription& d)
      : d_(d), layout_(identity_layout(d.weight_layout, d.vocabulary * d.width)) {}
  std::string describe() const override { return "reference"; }
  std::shared_ptr<const ParameterLayout> weight_layout() const override { return layout_; }
  void run_forward(const Forward& a, const OpMemory&, Stream&) override {
    embedding_forward(d_, a.ids, static_cast<const float*>(a.weight), static_cast<float*>(a.y));
  }
  void run_backward(const Backward& a, const OpMemory&, Stream&) override {
    if (a.dweight_mode == GradientMode::skip) return;
    embedding_backward(d_, a.ids, static_cast<const float*>(a.dy), static_cast<float*>(a.dweight), a.dweight_mode);
  }

 private:
  EmbeddingDescription d_;
  std::shared_ptr<const ParameterLayout> layout_;
};

inline std::unique_ptr<Embedding> make_embedding(const EmbeddingDescription& d, const Context&) {
  return std::make_unique<ReferenceEmbedding>(d);
}

}  // namespace lockstep::reference

// Low-rank adapters, straight from the formulas of lockstep/ops/lora.h. `T` is the stored type (float: the
// ReferenceBackend; double: finite differences); all intermediate values are double.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "lockstep/ops/lora.h"
#include "test/reference/normalization.h"
#include "test/reference/ops.h"

namespace lockstep::reference {

/// The factor by which dropout of a part multiplies x: 0, or 1 / (1 - p).
inline double lora_factor(const LoraDescription& d, const LoraPart& part, Index row, Index i, const std::uint32_t* ids,
                          std::uint32_t epoch) {
  if (!d.drops()) return 1;
  const double threshold = std::floor(65536 * d.dropout + 0.5);
  const Index blocks = (d.in_features + 7) / 8, index = row % d.tokens * blocks + i / 8;
  const auto block = Philox(d.seed, RandomPurpose::dropout, ids[row / d.tokens], epoch)
                         .block(std::uint64_t{part.stream} << 32 | static_cast<std::uint32_t>(index));
  const std::uint32_t word = block[static_cast<std::size_t>(i % 8 / 2)];
  const std::uint32_t bits = i % 2 == 0 ? word & 0xffffu : word >> 16;
  return bits >= threshold ? 1 / (1 - threshold / 65536) : 0;
}

template <typename T>
struct LoraTensors {
  const T *x = nullptr, *a = nullptr, *b = nullptr;
  const std::uint32_t* ids = nullptr;
  std::uint32_t epoch = 0;
};

/// h of a row for all parts: (parts * rank).
template <typename T>
std::vector<double> lora_hidden(const LoraDescription& d, const LoraTensors<T>& t, Index row) {
  std::vector<double> h(static_cast<std::size_t>(d.ranks()));
  for (std::size_t k = 0; k < h.size(); ++k) {
    const LoraPart& part = d.parts[k / static_cast<std::size_t>(d.rank)];
    for (Index i = 0; i < d.in_features; ++i)
      h[k] += lora_factor(d, part, row, i, t.ids, t.epoch) * double{t.x[row * d.in_features + i]} *
              double{t.a[static_cast<Index>(k) * d.in_features + i]};
  }
  return h;
}

template <typename T>
void lora_forward(const LoraDescription& d, const LoraTensors<T>& t, T* y) {
  for (Index row = 0; row < d.rows; ++row) {
    const std::vector<double> h = lora_hidden(d, t, row);
    Index column = 0;  // counted over all parts: the row of B
    for (std::size_t p = 0; p < d.parts.size(); ++p)
      for (Index c = 0; c < d.parts[p].columns; ++c, ++column) {
        double sum = 0;
        for (Index r = 0; r < d.rank; ++r)
          sum +=
              h[p * static_cast<std::size_t>(d.rank) + static_cast<std::size_t>(r)] * double{t.b[column * d.rank + r]};
        T& target = y[row * d.out_features + d.parts[p].begin + c];
        target = static_cast<T>(double{target} + double{d.scale} * sum);
      }
  }
}

/// A null gradient is skipped.
template <typename T, typename G>
void lora_backward(const LoraDescription& d, const LoraTensors<T>& t, const T* dy, T* dx, G* da, G* db,
                   GradientMode mode) {
  std::vector<double> of_a(static_cast<std::size_t>(d.ranks() * d.in_features));
  std::vector<double> of_b(static_cast<std::size_t>(d.columns() * d.rank));
  for (Index row = 0; row < d.rows; ++row) {
    const std::vector<double> h = lora_hidden(d, t, row);
    Index first = 0;
    for (std::size_t p = 0; p < d.parts.size(); first += d.parts[p].columns, ++p)
      for (Index r = 0; r < d.rank; ++r) {
        const Index k = static_cast<Index>(p) * d.rank + r;
        double dh = 0;
        for (Index c = 0; c < d.parts[p].columns; ++c) {
          const double gradient = double{d.scale} * double{dy[row * d.out_features + d.parts[p].begin + c]};
          dh += gradient * double{t.b[(first + c) * d.rank + r]};
          of_b[static_cast<std::size_t>((first + c) * d.rank + r)] += gradient * h[static_cast<std::size_t>(k)];
        }
        for (Index i = 0; i < d.in_features; ++i) {
          const double factor = lora_factor(d, d.parts[p], row, i, t.ids, t.epoch);
          of_a[static_cast<std::size_t>(k * d.in_features + i)] += dh * factor * double{t.x[row * d.in_features + i]};
          if (dx != nullptr) {
            T& target = dx[row * d.in_features + i];
            target = static_cast<T>(double{target} + dh * factor * double{t.a[k * d.in_features + i]});
          }
        }
      }
  }
  for (std::size_t i = 0; da != nullptr && i < of_a.size(); ++i) put(da[i], of_a[i], mode);
  for (std::size_t i = 0; db != nullptr && i < of_b.size(); ++i) put(db[i], of_b[i], mode);
}

class ReferenceLora final : public Lora {
 public:
  explicit ReferenceLora(const LoraDescription& d) : d_(d) {}
  std::string describe() const override { return "reference"; }
  void run_forward(const Forward& a, const OpMemory&, Stream&) override {
    lora_forward(d_, tensors(a.x, a.a, a.b, a.samples), static_cast<float*>(a.y));
  }
  void run_backward(const Backward& a, const OpMemory&, Stream&) override {
    lora_backward(d_, tensors(a.x, a.a, a.b, a.samples), static_cast<const float*>(a.dy), static_cast<float*>(a.dx),
                  a.da, a.db, a.parameter_mode);
  }

 private:
  static LoraTensors<float> tensors(const void* x, const void* a, const void* b, const Samples& samples) {
    return {static_cast<const float*>(x), static_cast<const float*>(a), static_cast<const float*>(b), samples.ids,
            samples.scalars != nullptr ? samples.scalars->epoch : 0};
  }
  LoraDescription d_;
};

inline std::unique_ptr<Lora> make_lora(const LoraDescription& d, const Context&) {
  return std::make_unique<ReferenceLora>(d);
}

}  // namespace lockstep::reference

// Rotary position embedding, straight from the formulas of lockstep/ops/rotary.h. `T` is the stored type (float: the
// ReferenceBackend; double: finite differences); all intermediate values are double.
#pragma once

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/ops/rotary.h"
#include "test/reference/normalization.h"
#include "test/reference/ops.h"

namespace lockstep::reference {

template <typename T>
struct RotaryForward {
  const T* x = nullptr;
  const std::int32_t* positions = nullptr;
  const float* table = nullptr;
  const T* norms[2] = {};  // of queries and of keys
  T* y = nullptr;
};

template <typename T>
struct RotaryBackward {
  const T* dy = nullptr;
  const T* x = nullptr;
  const std::int32_t* positions = nullptr;
  const float* table = nullptr;
  const T* norms[2] = {};
  T* dx = nullptr;
  GradientMode dx_mode = GradientMode::overwrite;
  T* dnorms[2] = {};
  GradientMode dnorm_modes[2] = {};
};

/// The positions of the first and the second number of a pair in a head.
inline std::pair<std::size_t, std::size_t> pair_of(const RotaryDescription& d, Index i) {
  const auto pair = static_cast<std::size_t>(i), half = static_cast<std::size_t>(d.head_dim / 2);
  return d.pairs == RotaryPairs::interleaved ? std::pair{2 * pair, 2 * pair + 1} : std::pair{pair, pair + half};
}

/// `direction`: -1 rotates back.
inline std::vector<double> rotated(const RotaryDescription& d, const std::vector<double>& head, const float* table,
                                   std::int32_t position, double direction) {
  const Index row = std::clamp<Index>(position, 0, d.max_positions - 1), half = d.head_dim / 2;
  std::vector<double> out(head.size());
  for (Index i = 0; i < half; ++i) {
    const double cosine = table[row * d.head_dim + i], sine = direction * table[row * d.head_dim + half + i];
    const auto [first, second] = pair_of(d, i);
    out[first] = head[first] * cosine - head[second] * sine;
    out[second] = head[second] * cosine + head[first] * sine;
  }
  return out;
}

inline double inverse_rms(const RotaryDescription& d, const std::vector<double>& head) {
  double squares = 0;
  for (const double x : head) squares += x * x;
  return 1 / std::sqrt(squares / static_cast<double>(d.head_dim) + double{d.epsilon});
}

template <typename T>
void rotary_forward(const RotaryDescription& d, const RotaryForward<T>& args) {
  for (Index row = 0; row < d.rows; ++row)
    for (Index h = 0; h < d.heads + 2 * d.kv_heads; ++h) {
      const Index at = row * d.row_size() + h * d.head_dim;
      std::vector<double> head(args.x + at, args.x + at + d.head_dim);
      if (h < d.heads + d.kv_heads) {
        const double inverse = d.norm ? inverse_rms(d, head) : 1;
        for (std::size_t i = 0; d.norm && i < head.size(); ++i)
          head[i] *= inverse * (double{d.weight_offset} + args.norms[h < d.heads ? 0 : 1][i]);
        head = rotated(d, head, args.table, args.positions[row], 1);
      }
      for (std::size_t i = 0; i < head.size(); ++i) args.y[at + static_cast<Index>(i)] = static_cast<T>(head[i]);
    }
}

template <typename T>
void rotary_backward(const RotaryDescription& d, const RotaryBackward<T>& args) {
  const auto size = static_cast<std::size_t>(d.head_dim);
  std::vector<double> sums[2] = {std::vector<double>(size), std::vector<double>(size)};
  for (Index row = 0; row < d.rows; ++row)
    for (Index h = 0; h < d.heads + 2 * d.kv_heads; ++h) {
      const Index at = row * d.row_size() + h * d.head_dim;
      const std::size_t kind = h < d.heads ? 0 : 1;
      std::vector<double> gradient(args.dy + at, args.dy + at + d.head_dim);
      if (h < d.heads + d.kv_heads) {
        gradient = rotated(d, gradient, args.table, args.positions[row], -1);
        if (d.norm) {
          const std::vector<double> x(args.x + at, args.x + at + d.head_dim);
          const double inverse = inverse_rms(d, x);
          double mean = 0;
          for (std::size_t i = 0; i < size; ++i) {
            sums[kind][i] += gradient[i] * x[i] * inverse;
            gradient[i] *= double{d.weight_offset} + args.norms[kind][i];
            mean += gradient[i] * x[i] * inverse / static_cast<double>(size);
          }
          for (std::size_t i = 0; i < size; ++i) gradient[i] = inverse * (gradient[i] - x[i] * inverse * mean);
        }
      }
      if (args.dx_mode == GradientMode::skip) continue;
      for (std::size_t i = 0; i < size; ++i) put(args.dx[at + static_cast<Index>(i)], gradient[i], args.dx_mode);
    }
  for (std::size_t kind = 0; d.norm && kind < 2; ++kind)
    for (std::size_t i = 0; args.dnorm_modes[kind] != GradientMode::skip && i < size; ++i)
      put(args.dnorms[kind][i], sums[kind][i], args.dnorm_modes[kind]);
}

class ReferenceRotary final : public Rotary {
 public:
  explicit ReferenceRotary(const RotaryDescription& d) : d_(d) {}
  std::string describe() const override { return "reference: all fused"; }
  void run_forward(const Forward& a, const OpMemory&, Stream&) override {
    rotary_forward<float>(
        d_, {static_cast<const float*>(a.x), a.positions, a.table, {a.q_norm, a.k_norm}, static_cast<float*>(a.y)});
  }
  void run_backward(const Backward& a, const OpMemory&, Stream&) override {
    rotary_backward<float>(d_, {static_cast<const float*>(a.dy),
                                static_cast<const float*>(a.x),
                                a.positions,
                                a.table,
                                {a.q_norm, a.k_norm},
                                static_cast<float*>(a.dx),
                                a.dx_mode,
                                {a.dq_norm, a.dk_norm},
                                {a.dq_norm_mode, a.dk_norm_mode}});
  }

 private:
  RotaryDescription d_;
};

inline std::unique_ptr<Rotary> make_rotary(const RotaryDescription& d, const Context&) {
  return std::make_unique<ReferenceRotary>(d);
}

}  // namespace lockstep::reference

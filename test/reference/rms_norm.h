// RMS norm, straight from the formulas of lockstep/ops/rms_norm.h. `T` is the stored type (float: the ReferenceBackend;
// double: finite differences); all intermediate values are double.
#pragma once

#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/ops/rms_norm.h"
#include "test/reference/normalization.h"
#include "test/reference/ops.h"

namespace lockstep::reference {

template <typename T>
struct RmsNormForward {
  const T* x = nullptr;         // (rows, width)
  const T* residual = nullptr;  // (rows, width), or null
  const T* weight = nullptr;    // (width)
  T* s = nullptr;               // (rows, width), overwritten; null without a residual
  T* y = nullptr;
};

template <typename T>
struct RmsNormBackward {
  const T* dy = nullptr;
  const T* s = nullptr;
  const T* weight = nullptr;
  const T* added = nullptr;  // or null
  T* ds = nullptr;
  GradientMode ds_mode = GradientMode::overwrite;
  T* dweight = nullptr;
  GradientMode dweight_mode = GradientMode::overwrite;
};

template <typename T>
double inverse_rms(const RmsNormDescription& d, const T* row) {
  double squares = 0;
  for (Index c = 0; c < d.width; ++c) squares += double{row[c]} * row[c];
  return 1.0 / std::sqrt(squares / static_cast<double>(d.width) + double{d.epsilon});
}

template <typename T>
void rms_norm_forward(const RmsNormDescription& d, const RmsNormForward<T>& args) {
  for (Index row = 0; row < d.rows; ++row) {
    const T* s = args.x + row * d.width;
    if (args.residual != nullptr) {
      for (Index c = 0; c < d.width; ++c)
        args.s[row * d.width + c] = static_cast<T>(double{s[c]} + args.residual[row * d.width + c]);
      s = args.s + row * d.width;
    }
    const double inverse = inverse_rms(d, s);
    for (Index c = 0; c < d.width; ++c)
      args.y[row * d.width + c] = static_cast<T>(s[c] * inverse * (double{d.weight_offset} + args.weight[c]));
  }
}

template <typename T>
void rms_norm_backward(const RmsNormDescription& d, const RmsNormBackward<T>& args) {
  std::vector<double> dweight(static_cast<std::size_t>(d.width));
  for (Index row = 0; row < d.rows; ++row) {
    const T* s = args.s + row * d.width;
    const double inverse = inverse_rms(d, s);
    double mean = 0;
    for (Index c = 0; c < d.width; ++c) {
      const double dy = args.dy[row * d.width + c], s_hat = s[c] * inverse;
      dweight[static_cast<std::size_t>(c)] += dy * s_hat;
      mean += (double{d.weight_offset} + args.weight[c]) * dy * s_hat / static_cast<double>(d.width);
    }
    if (args.ds_mode == GradientMode::skip) continue;
    for (Index c = 0; c < d.width; ++c) {
      const Index i = row * d.width + c;
      const double added = args.added != nullptr ? double{args.added[i]} : 0.0;
      put(args.ds[i],
          inverse * ((double{d.weight_offset} + args.weight[c]) * args.dy[i] - s[c] * inverse * mean) + added,
          args.ds_mode);
    }
  }
  if (args.dweight_mode == GradientMode::skip) return;
  for (Index c = 0; c < d.width; ++c) put(args.dweight[c], dweight[static_cast<std::size_t>(c)], args.dweight_mode);
}

class ReferenceRmsNorm final : public RmsNorm {
 public:
  explicit ReferenceRmsNorm(const RmsNormDescription& d) : d_(d) {}
  std::string describe() const override { return "reference: all fused"; }

  void run_forward(const Forward& args, const OpMemory&, Stream&) override {
    const auto* const residual = d_.residual ? static_cast<const float*>(args.residual) : nullptr;
    rms_norm_forward<float>(d_, {static_cast<const float*>(args.x), residual, args.weight, static_cast<float*>(args.s),
                                 static_cast<float*>(args.y)});
  }
  void run_backward(const Backward& args, const OpMemory&, Stream&) override {
    rms_norm_backward<float>(d_, {static_cast<const float*>(args.dy), static_cast<const float*>(args.s), args.weight,
                                  static_cast<const float*>(args.added), static_cast<float*>(args.ds), args.ds_mode,
                                  args.dweight, args.dweight_mode});
  }

 private:
  RmsNormDescription d_;
};

inline std::unique_ptr<RmsNorm> make_rms_norm(const RmsNormDescription& d, const Context&) {
  return std::make_unique<ReferenceRmsNorm>(d);
}

}  // namespace lockstep::reference

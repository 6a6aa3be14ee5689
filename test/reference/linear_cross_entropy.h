// The last matmul and the cross entropy, straight from the formulas of lockstep/ops/linear_cross_entropy.h, without
// chunks. `T` is the stored type (float: the ReferenceBackend; double: finite differences); all intermediate values are
// double.
#pragma once

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/ops/linear_cross_entropy.h"
#include "test/reference/identity_layout.h"
#include "test/reference/normalization.h"
#include "test/reference/ops.h"

namespace lockstep::reference {

template <typename T>
struct LinearCrossEntropyArguments {
  const T* x = nullptr;
  const T* weight = nullptr;
  const std::int32_t* targets = nullptr;
  double loss_weight = 0;  // including the loss scale
  T* losses = nullptr;     // null: not stored
  T* dx = nullptr;         // null: not computed
  T* dweight = nullptr;
  GradientMode dweight_mode = GradientMode::skip;
};

template <typename T>
LossSums linear_cross_entropy(const LinearCrossEntropyDescription& d, const LinearCrossEntropyArguments<T>& args) {
  LossSums sums;
  std::vector<double> dweight(static_cast<std::size_t>(d.vocabulary * d.width));
  std::vector<double> logits(static_cast<std::size_t>(d.vocabulary)), dx(static_cast<std::size_t>(d.width));
  for (Index row = 0; row < d.rows; ++row) {
    const T* const x = args.x + row * d.width;
    const std::int32_t target = args.targets[row];
    std::fill(dx.begin(), dx.end(), 0.0);
    double loss = 0;
    if (target >= 0) {
      for (Index k = 0; k < d.vocabulary; ++k) {
        double sum = 0;
        for (Index i = 0; i < d.width; ++i) sum += double{x[i]} * args.weight[k * d.width + i];
        logits[static_cast<std::size_t>(k)] = sum;
      }
      const auto greatest = std::max_element(logits.begin(), logits.end());
      double sum = 0;
      for (const double logit : logits) sum += std::exp(logit - *greatest);
      loss = std::log(sum) + *greatest - logits[static_cast<std::size_t>(target)];
      sums.loss += loss;
      sums.correct += greatest - logits.begin() == target ? 1 : 0;
      sums.count += 1;
      sums.weight += 1;
      for (Index k = 0; k < d.vocabulary; ++k) {
        const double softmax = std::exp(logits[static_cast<std::size_t>(k)] - *greatest) / sum;
        const double dlogit = args.loss_weight * (softmax - (k == target ? 1 : 0));
        for (Index i = 0; i < d.width; ++i) {
          dx[static_cast<std::size_t>(i)] += dlogit * args.weight[k * d.width + i];
          dweight[static_cast<std::size_t>(k * d.width + i)] += dlogit * x[i];
        }
      }
    }
    if (args.losses != nullptr) args.losses[row] = static_cast<T>(loss);
    for (std::size_t i = 0; args.dx != nullptr && i < dx.size(); ++i)
      args.dx[row * d.width + static_cast<Index>(i)] = static_cast<T>(dx[i]);
  }
  if (args.dweight_mode != GradientMode::skip)
    for (std::size_t i = 0; i < dweight.size(); ++i) put(args.dweight[i], dweight[i], args.dweight_mode);
  return sums;
}

class ReferenceLinearCrossEntropy final : public LinearCrossEntropy {
 public:
  explicit ReferenceLinearCrossEntropy(const LinearCrossEntropyDescription& d)
      : d_(d), layout_(identity_layout(d.weight_layout, d.vocabulary * d.width)) {}
  std::string describe() const override { return "reference: all fused"; }
  std::shared_ptr<const ParameterLayout> weight_layout() const override { return layout_; }
  void run_forward(const Forward& a, const OpMemory&, Stream&) override {
    const bool wants_dx = d_.has_gradients() && d_.input_gradient;
    const bool wants_dweight = d_.has_gradients() && d_.weight_gradient;
    const double scale = a.loss_scale ? a.loss_scale->scale : 1.0f;
    const LossSums sums =
        linear_cross_entropy<float>(d_, {.x = static_cast<const float*>(a.x),
                                         .weight = static_cast<const float*>(a.weight),
                                         .targets = a.targets,
                                         .loss_weight = d_.has_gradients() ? scale * a.scalars->loss_weight : 0,
                                         .losses = a.losses,
                                         .dx = wants_dx ? static_cast<float*>(a.dx) : nullptr,
                                         .dweight = static_cast<float*>(a.dweight),
                                         .dweight_mode = wants_dweight ? a.dweight_mode : GradientMode::skip});
    if (a.sums_mode == GradientMode::skip) return;
    put(a.sums->loss, sums.loss, a.sums_mode);
    put(a.sums->correct, sums.correct, a.sums_mode);
    put(a.sums->count, sums.count, a.sums_mode);
    put(a.sums->weight, sums.weight, a.sums_mode);
  }

 private:
  LinearCrossEntropyDescription d_;
  std::shared_ptr<const ParameterLayout> layout_;
};

inline std::unique_ptr<LinearCrossEntropy> make_linear_cross_entropy(const LinearCrossEntropyDescription& d,
                                                                     const Context&) {
  return std::make_unique<ReferenceLinearCrossEntropy>(d);
}

}  // namespace lockstep::reference

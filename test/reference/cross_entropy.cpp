#include "test/reference/cross_entropy.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "lockstep/error.h"
#include "test/reference/normalization.h"
#include "test/reference/ops.h"

namespace lockstep::reference {
namespace {

template <typename T>
std::vector<double> log_softmax(const T* logits, Index classes) {
  const double greatest = *std::max_element(logits, logits + classes);
  double sum = 0;
  for (Index k = 0; k < classes; ++k) sum += std::exp(logits[k] - greatest);
  std::vector<double> result(static_cast<std::size_t>(classes));
  for (Index k = 0; k < classes; ++k) result[static_cast<std::size_t>(k)] = logits[k] - greatest - std::log(sum);
  return result;
}

struct Label {
  std::int32_t a = 0, b = 0;
  double weight = 1;  // of label a; the rest is that of b
  double share(Index k) const { return (k == a ? weight : 0.0) + (k == b ? 1.0 - weight : 0.0); }
  std::int32_t greater() const { return weight >= 0.5 ? a : b; }
};
Label label_of(const std::int32_t* labels, const MixedLabels& mixed, Index row) {
  if (!mixed.labels) return {labels[row], labels[row], 1.0};
  return {labels[row], mixed.labels[row], *mixed.weight};
}

/// w_k q_k
double target(const SoftmaxCrossEntropyDescription& d, Index k, const Label& label, const float* weights) {
  const double smoothing = d.label_smoothing;
  const double q = (1.0 - smoothing) * label.share(k) + smoothing / static_cast<double>(d.classes);
  return weights ? weights[k] * q : q;
}

}  // namespace

template <typename T>
LossSums softmax_cross_entropy_forward(const SoftmaxCrossEntropyDescription& d, const T* logits,
                                       const std::int32_t* labels, const float* class_weights,
                                       const MixedLabels& mixed) {
  LossSums sums;
  for (Index row = 0; row < d.rows; ++row) {
    if (labels[row] < 0) continue;
    const T* x = logits + row * d.classes;
    const Label label = label_of(labels, mixed, row);
    const std::vector<double> log_p = log_softmax(x, d.classes);
    for (Index k = 0; k < d.classes; ++k)
      sums.loss -= target(d, k, label, class_weights) * log_p[static_cast<std::size_t>(k)];
    sums.correct += std::max_element(x, x + d.classes) - x == label.greater() ? 1 : 0;
    sums.count += 1;
    sums.weight +=
        class_weights ? label.weight * class_weights[label.a] + (1.0 - label.weight) * class_weights[label.b] : 1.0;
  }
  return sums;
}

template <typename T>
void softmax_cross_entropy_backward(const SoftmaxCrossEntropyDescription& d, const T* logits,
                                    const std::int32_t* labels, const float* class_weights, double loss_weight,
                                    T* dlogits, const MixedLabels& mixed) {
  for (Index row = 0; row < d.rows; ++row) {
    const Label label = label_of(labels, mixed, row);
    double sum = 0;
    for (Index k = 0; k < d.classes; ++k) sum += target(d, k, label, class_weights);
    const std::vector<double> log_p = log_softmax(logits + row * d.classes, d.classes);
    for (Index k = 0; k < d.classes; ++k) {
      const double gradient = sum * std::exp(log_p[static_cast<std::size_t>(k)]) - target(d, k, label, class_weights);
      dlogits[row * d.classes + k] = static_cast<T>(labels[row] < 0 ? 0.0 : loss_weight * gradient);
    }
  }
}

template LossSums softmax_cross_entropy_forward(const SoftmaxCrossEntropyDescription&, const float*,
                                                const std::int32_t*, const float*, const MixedLabels&);
template LossSums softmax_cross_entropy_forward(const SoftmaxCrossEntropyDescription&, const double*,
                                                const std::int32_t*, const float*, const MixedLabels&);
template void softmax_cross_entropy_backward(const SoftmaxCrossEntropyDescription&, const float*, const std::int32_t*,
                                             const float*, double, float*, const MixedLabels&);
template void softmax_cross_entropy_backward(const SoftmaxCrossEntropyDescription&, const double*, const std::int32_t*,
                                             const float*, double, double*, const MixedLabels&);

namespace {

class ReferenceSoftmaxCrossEntropy final : public SoftmaxCrossEntropy {
 public:
  explicit ReferenceSoftmaxCrossEntropy(const SoftmaxCrossEntropyDescription& d) : d_(d) {
    require(d.dtype == DType::fp32, ErrorCode::not_supported, "the reference cross entropy computes only in fp32");
  }
  std::string describe() const override { return "reference: all fused"; }
  void run_forward(const Forward& a, const OpMemory&, Stream&) override {
    const LossSums sums =
        softmax_cross_entropy_forward(d_, static_cast<const float*>(a.logits), a.labels, a.class_weights, a.mixed);
    put(a.sums->loss, sums.loss, a.sums_mode);
    put(a.sums->correct, sums.correct, a.sums_mode);
    put(a.sums->count, sums.count, a.sums_mode);
    put(a.sums->weight, sums.weight, a.sums_mode);
  }
  void run_backward(const Backward& a, const OpMemory&, Stream&) override {
    const double scale = a.loss_scale ? a.loss_scale->scale : 1.0f;
    softmax_cross_entropy_backward(d_, static_cast<const float*>(a.logits), a.labels, a.class_weights,
                                   scale * a.scalars->loss_weight, static_cast<float*>(a.dlogits), a.mixed);
  }

 private:
  SoftmaxCrossEntropyDescription d_;
};

}  // namespace

std::unique_ptr<SoftmaxCrossEntropy> make_softmax_cross_entropy(const SoftmaxCrossEntropyDescription& description,
                                                                const Context&) {
  return std::make_unique<ReferenceSoftmaxCrossEntropy>(description);
}

}  // namespace lockstep::reference

// Softmax cross entropy with label smoothing (lockstep/ops/cross_entropy.h), each row in fp64, rows summed in their
// order.
#include <cmath>
#include <memory>

#include "kernels/cpu/base/parallel.h"
#include "lockstep/error.h"
#include "lockstep/ops/cross_entropy.h"

namespace lockstep::cpu {
namespace {

/// The labels of a row, and the weight of the first label.
struct Target {
  std::int32_t own = 0, other = 0;
  double weight = 1;
  std::int32_t greater() const { return weight >= 0.5 ? own : other; }
};
Target target_of(const std::int32_t* labels, const MixedLabels& mixed, std::int64_t row) {
  if (!mixed.labels) return {labels[row], labels[row], 1.0};
  return {labels[row], mixed.labels[row], *mixed.weight};
}

/// What forward computes for one row. The results of rows are added up later, in row order.
struct RowResult {
  double loss = 0;
  double correct = 0;
  double weight = 0;  // of the class of the label, or of both classes
};

class CpuSoftmaxCrossEntropy final : public CpuOp<SoftmaxCrossEntropyDescription> {
 public:
  CpuSoftmaxCrossEntropy(const SoftmaxCrossEntropyDescription& d, const CpuContext& context)
      : PlannedOp(d, context),
        // An exponential costs about as much as moving 100 bytes.
        parts_(part_count(context, d.rows * d.classes * 100)) {}

  OpMemoryRequirements memory_requirements() const override {
    return {.forward_workspace_bytes = static_cast<std::size_t>(d_.rows) * sizeof(RowResult)};
  }
  std::string describe() const override { return "own kernel: each row in fp64"; }

  void run_forward(const Forward& args, const OpMemory& memory, Stream&) override {
    const float* logits = static_cast<const float*>(args.logits);
    RowResult* results = static_cast<RowResult*>(memory.workspace);
    for_rows([&](std::int64_t row) {
      if (args.labels[row] >= 0)
        results[row] = row_loss(logits + row * d_.classes, target_of(args.labels, args.mixed, row), args.class_weights);
    });
    LossSums sums = args.sums_mode == GradientMode::accumulate ? *args.sums : LossSums{};
    for (std::int64_t row = 0; row < d_.rows; ++row) {
      if (args.labels[row] < 0) continue;
      sums.loss += results[row].loss;
      sums.correct += results[row].correct;
      sums.count += 1;
      sums.weight += results[row].weight;
    }
    if (args.sums_mode != GradientMode::skip) *args.sums = sums;
  }

  void run_backward(const Backward& args, const OpMemory&, Stream&) override {
    const std::int64_t classes = d_.classes;
    const double scale = args.loss_scale ? args.loss_scale->scale : 1.0f;
    const double weight = args.scalars->loss_weight * scale;
    const double smoothing = d_.label_smoothing;
    const double q_other = smoothing / static_cast<double>(classes);
    for_rows([&](std::int64_t row) {
      const float* logits = static_cast<const float*>(args.logits) + row * classes;
      float* dlogits = static_cast<float*>(args.dlogits) + row * classes;
      const Target target = target_of(args.labels, args.mixed, row);
      if (target.own < 0) {
        for (std::int64_t k = 0; k < classes; ++k) dlogits[k] = 0;
        return;
      }
      const float greatest = logits[first_greatest(logits)];
      const double inverse_sum = 1.0 / sum_of_exponentials(logits, greatest);
      const float* const w = args.class_weights;
      const double q_own = target.weight * (1.0 - smoothing), q_second = (1.0 - target.weight) * (1.0 - smoothing);
      const double q_sum = w ? q_own * w[target.own] + q_second * w[target.other] + q_other * d_.class_weight_sum : 1.0;
      for (std::int64_t k = 0; k < classes; ++k) {
        const double softmax = std::exp(double{logits[k]} - greatest) * inverse_sum;
        const double q = q_other + (k == target.own ? q_own : 0.0) + (k == target.other ? q_second : 0.0);
        dlogits[k] = static_cast<float>(weight * (w ? softmax * q_sum - w[k] * q : softmax - q));
      }
    });
  }

 private:
  template <typename Work>
  void for_rows(const Work& work) const {
    run_ranges(parts_, d_.rows, [&](Range range) {
      for (std::int64_t row = range.begin; row < range.end; ++row) work(row);
    });
  }

  std::int64_t first_greatest(const float* logits) const {
    std::int64_t best = 0;
    for (std::int64_t k = 1; k < d_.classes; ++k)
      if (logits[k] > logits[best]) best = k;
    return best;
  }

  double sum_of_exponentials(const float* logits, double greatest) const {
    double sum = 0;
    for (std::int64_t k = 0; k < d_.classes; ++k) sum += std::exp(logits[k] - greatest);
    return sum;
  }

  RowResult row_loss(const float* logits, const Target& target, const float* weights) const {
    const std::int64_t best = first_greatest(logits);
    const double greatest = logits[best];
    const double log_sum = std::log(sum_of_exponentials(logits, greatest));
    const double smoothing = d_.label_smoothing;
    double loss = 0, weight = 0;
    const auto add = [&](std::int32_t label, double part) {
      const double of_class = weights ? weights[label] : 1.0;
      loss += part * of_class * ((1.0 - smoothing) * (log_sum - (logits[label] - greatest)));
      weight += part * of_class;
    };
    add(target.own, target.weight);
    if (target.weight != 1) add(target.other, 1.0 - target.weight);
    if (smoothing != 0) {
      double sum = 0;  // of -log softmax over all classes
      for (std::int64_t k = 0; k < d_.classes; ++k)
        sum += (weights ? weights[k] : 1.0) * (log_sum - (logits[k] - greatest));
      loss += smoothing * sum / static_cast<double>(d_.classes);
    }
    return {loss, best == target.greater() ? 1.0 : 0.0, weight};
  }

  int parts_;
};

}  // namespace

std::unique_ptr<SoftmaxCrossEntropy> make_softmax_cross_entropy(const SoftmaxCrossEntropyDescription& d,
                                                                const CpuContext& context) {
  require(d.dtype == DType::fp32, ErrorCode::not_supported, "the loss on the CPU reads fp32, not {}", name(d.dtype));
  return std::make_unique<CpuSoftmaxCrossEntropy>(d, context);
}

}  // namespace lockstep::cpu

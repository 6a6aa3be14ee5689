// Softmax cross entropy with label smoothing e over K classes (Szegedy et al., "Rethinking the Inception Architecture
// for Computer Vision", 2016, section 7), as in PyTorch:
//     loss_n = -sum_k q_k log softmax(logits_n)_k,  q_k = (1-e) [k == label] + e / K
//     dlogits = loss_scale * loss_weight * (softmax - q)
// With a weight w_k for each class, as in PyTorch's CrossEntropyLoss(weight=w):
//     loss_n = -sum_k w_k q_k log softmax(logits_n)_k, dlogits = loss_scale * loss_weight * (softmax * sum_j w_j q_j -
//     w_k q_k)
// and the mean divides by the sum of w_label (LossSums::weight, ClipNorm).
// With mixed labels (lockstep/ops/mix_images.h), a row has the label a with the weight m and the label b with 1 - m,
// and q_k = (1-e) (m [k == a] + (1-m) [k == b]) + e / K, as in PyTorch's loss for class probabilities. w_label is then
// m w_a + (1-m) w_b, and a prediction is correct if it is the label with the greater weight (a if both are 1/2).
// A row with a negative label is not counted and has no gradient. Other labels must be below K, which is not checked.
#pragma once

#include "lockstep/dtype.h"
#include "lockstep/error.h"
#include "lockstep/loss_scale.h"
#include "lockstep/op.h"
#include "lockstep/ops/step_scalars.h"

namespace lockstep {

struct SoftmaxCrossEntropyDescription {
  using Op = class SoftmaxCrossEntropy;
  static constexpr std::string_view kName = "cross_entropy";

  std::int64_t rows = 0;
  std::int64_t classes = 0;
  float label_smoothing = 0;
  double class_weight_sum = 0;  // of all classes; 0: classes have no weights
  DType dtype = DType::fp32;
  bool inference = false;
};

inline void require_possible(const SoftmaxCrossEntropyDescription& d) {
  require(d.rows > 0 && d.classes > 0, ErrorCode::op_description,
          "the loss needs at least one row and one class, but there are {} rows and {} classes", d.rows, d.classes);
}

/// The other label of each row, and the weight of the first one.
struct MixedLabels {
  const std::int32_t* labels = nullptr;  // (rows); b, not negative where a row is counted; null: rows have one label
  const float* weight = nullptr;         // (1); m
};

struct SoftmaxCrossEntropyCalls {
  struct Forward {
    const void* logits = nullptr;          // (rows, classes)
    const std::int32_t* labels = nullptr;  // (rows)
    MixedLabels mixed{};
    const float* class_weights = nullptr;  // (classes); null: none
    LossSums* sums = nullptr;
    GradientMode sums_mode = GradientMode::overwrite;
  };
  struct Backward {
    const void* logits = nullptr;
    const std::int32_t* labels = nullptr;
    MixedLabels mixed{};
    const float* class_weights = nullptr;
    const StepScalars* scalars = nullptr;
    const LossScale* loss_scale = nullptr;  // null: 1
    void* dlogits = nullptr;                // overwritten
  };
};

class SoftmaxCrossEntropy : public TwoWayOp<SoftmaxCrossEntropyDescription, SoftmaxCrossEntropyCalls> {};

}  // namespace lockstep

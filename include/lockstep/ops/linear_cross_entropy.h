// The last matmul of a language model and its softmax cross entropy, in chunks of rows, so that the logits of all rows
// never exist at once:
//     logits = x * weight^T,  loss_n = -log softmax(logits_n)[target_n]
//     dlogits = loss_scale * loss_weight * (softmax - [k == target]),  dx = dlogits * weight,  dweight = dlogits^T * x
// The loss needs nothing that comes later in a step, so forward computes the gradients too: the logits are computed
// once, and those of a chunk are discarded when its gradients are complete. Softmax and sums are fp32 or wider; dlogits
// are rounded to dtype. Logits are fp32 on the CPU. On a GPU they are fp32 only for inference: with gradients they are
// rounded to dtype, as by PyTorch under autocast, since their gradients then take their place. A row with a negative
// target is not counted and has no gradient. LossSums and StepScalars are those of cross_entropy.h, with a weight of 1
// for each counted row. The weight is in canonical form, so that an embedding can share it (tied embeddings).
#pragma once

#include <algorithm>
#include <memory>

#include "lockstep/dtype.h"
#include "lockstep/error.h"
#include "lockstep/loss_scale.h"
#include "lockstep/op.h"
#include "lockstep/ops/step_scalars.h"

namespace lockstep {

struct LinearCrossEntropyDescription {
  using Op = class LinearCrossEntropy;
  static constexpr std::string_view kName = "linear_cross_entropy";

  std::int64_t rows = 0;               // predictions
  std::int64_t width = 0;              // of x
  std::int64_t vocabulary = 0;         // classes
  DType dtype = DType::fp32;           // of x, weight and dx
  DType gradient_dtype = DType::fp32;  // of dweight: fp32 or `dtype`
  bool tf32 = false;                   // fp32 may be rounded to tf32 inside the multiply
  bool input_gradient = true;
  bool weight_gradient = true;
  bool inference = false;                                  // no gradients
  std::int64_t chunk_rows = 0;                             // rows whose logits exist at once; 0: the backend chooses
  std::shared_ptr<const ParameterLayout> weight_layout{};  // of an op that shares the weight; null: a new one

  bool has_gradients() const { return !inference && (input_gradient || weight_gradient); }
};

/// The number of rows in a chunk, whose logits are at most `most_logits` (a single row may have more). All chunks have
/// the same size, up to rounding: to a multiple of `multiple` where the limit allows that.
inline std::int64_t rows_per_chunk(const LinearCrossEntropyDescription& d, std::int64_t most_logits,
                                   std::int64_t multiple = 1) {
  if (d.chunk_rows > 0) return std::min(d.chunk_rows, d.rows);
  const std::int64_t most = std::max<std::int64_t>(1, most_logits / d.vocabulary);
  const std::int64_t n_chunks = (d.rows + most - 1) / most, equal = (d.rows + n_chunks - 1) / n_chunks;
  const std::int64_t rounded = (equal + multiple - 1) / multiple * multiple;
  return rounded <= most ? std::min(rounded, d.rows) : equal;
}

/// Throws op_description for sizes that no backend can have.
inline void require_possible(const LinearCrossEntropyDescription& d) {
  constexpr std::int64_t kLimit = std::int64_t{1} << 31;
  require(d.rows > 0 && d.width > 0 && d.vocabulary > 0 && d.rows < kLimit && d.vocabulary < kLimit,
          ErrorCode::op_description,
          "a loss of {} rows of {} elements over a vocabulary of {}: each must be positive, and below 2^31", d.rows,
          d.width, d.vocabulary);
  require(d.chunk_rows >= 0, ErrorCode::op_description, "a chunk of {} rows: the number must not be negative",
          d.chunk_rows);
}

struct LinearCrossEntropyCalls {
  struct Forward {
    const void* x = nullptr;                // (rows, width)
    const void* weight = nullptr;           // (vocabulary, width)
    const std::int32_t* targets = nullptr;  // (rows), below vocabulary
    LossSums* sums = nullptr;
    GradientMode sums_mode = GradientMode::overwrite;
    float* losses = nullptr;  // (rows): the loss of each row, 0 where it is not counted; null: not stored
    // With gradients:
    const StepScalars* scalars = nullptr;
    const LossScale* loss_scale = nullptr;  // null: 1
    void* dx = nullptr;                     // (rows, width), overwritten; null: skipped
    void* dweight = nullptr;                // (vocabulary, width)
    GradientMode dweight_mode = GradientMode::overwrite;
  };
};

class LinearCrossEntropy : public ForwardOp<LinearCrossEntropyDescription, LinearCrossEntropyCalls> {
 public:
  /// Always canonical.
  virtual std::shared_ptr<const ParameterLayout> weight_layout() const = 0;
};

}  // namespace lockstep

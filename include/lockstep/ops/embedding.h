// Embedding: the row of a table for each id, and the gradient of the table.
//     y_p = scale * weight[id_p]
//     dweight[k] = sum over the positions p with id_p = k, in ascending order, of dy_p, times scale
// For an id outside of [0, vocabulary), the row of y is zero, and there is no gradient. The gradient is computed
// without atomic additions: positions are sorted by their ids, and the rows of each id are summed in fp32 in an order
// that depends on the ids alone, so it has the same bits on any number of threads. The weight is in canonical form, so
// that a matmul can share it (tied embeddings). Planning throws op_description for empty shapes, and not_supported for
// types that the backend does not support and for a weight in another layout.
#pragma once

#include <memory>

#include "lockstep/dtype.h"
#include "lockstep/op.h"

namespace lockstep {

struct EmbeddingDescription {
  using Op = class Embedding;
  static constexpr std::string_view kName = "embedding";

  std::int64_t rows = 0;        // positions
  std::int64_t vocabulary = 0;  // ids, rows of the weight
  std::int64_t width = 0;
  DType dtype = DType::fp32;           // of weight, y and dy
  DType gradient_dtype = DType::fp32;  // of dweight: fp32 or `dtype`
  float scale = 1;
  bool inference = false;                                  // backward is never called
  std::shared_ptr<const ParameterLayout> weight_layout{};  // of an op that shares the weight; null: a new one
};

struct EmbeddingCalls {
  struct Forward {
    const std::int32_t* ids = nullptr;  // (rows)
    const void* weight = nullptr;       // (vocabulary, width)
    void* y = nullptr;                  // (rows, width), overwritten
  };
  struct Backward {
    const std::int32_t* ids = nullptr;
    const void* dy = nullptr;  // (rows, width)
    void* dweight = nullptr;   // (vocabulary, width); overwritten with zeros where an id does not occur
    GradientMode dweight_mode = GradientMode::overwrite;
  };
};

class Embedding : public TwoWayOp<EmbeddingDescription, EmbeddingCalls> {
 public:
  /// Always canonical.
  virtual std::shared_ptr<const ParameterLayout> weight_layout() const = 0;
};

}  // namespace lockstep

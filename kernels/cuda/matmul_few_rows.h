// A step of a few rows, such as one of decoding, in one launch. Each of its ops takes about as long as a launch, and
// reads weights that nothing else delays. While a part of a step is captured, ops for at most kFewRows rows therefore
// only describe their work, and it is launched together when something else is queued or the part ends: one kernel does
// one stage after the other, and all blocks wait for each other in between. Before a block waits, it asks for weights
// of the next product, so that the memory is busy meanwhile.
//
// Each function returns false if the op must do the work itself: nothing is captured, or the shape is not supported.
// The bits of a row do not depend on the number of rows or of blocks.
#pragma once

#include <vector>

#include "kernels/cuda/base/context.h"
#include "lockstep/launches.h"
#include "lockstep/ops/cached_attention.h"
#include "lockstep/ops/embedding.h"
#include "lockstep/ops/glu.h"
#include "lockstep/ops/matmul.h"
#include "lockstep/ops/rms_norm.h"
#include "lockstep/ops/rotary.h"

namespace lockstep::cuda {

/// What one stage does.
struct Stage {
  enum class Kind : std::uint8_t { take, product, rotate, attend, combine } kind = Kind::take;
  enum class Source : std::uint8_t { plain, norm, glu } source = Source::plain;
  ActivationFunction function = ActivationFunction::none;
  bool fp32_output = false;
  int rows = 0, width = 0;
  // of the next product; what the last stages before it did not ask for
  const char* prefetched = nullptr;
  unsigned n_prefetched = 0;  // bytes

  /// take: y = scale * row ids[r] of the table. product: the source, which is x, its norm or its gated unit and is
  /// stored as y if it is not x, times the weight (columns, width); without columns, the source is all.
  struct Product {
    const void *x, *residual, *weight, *bias;
    const float* norm;
    const std::int32_t* ids;
    void *s, *y, *out;
    float scale, epsilon, offset;
    int columns;
  };
  struct Rotate {
    Rotary::Forward args;
    int heads, kv_heads, max_positions;
    float epsilon, offset;
    bool interleaved;
  };
  struct Attend {
    CachedAttention::Forward args;
    float* partials;  // (rows, heads, tiles, 2 + head_dim): greatest score, sum of exponentials, sums of values
    int slots, capacity, heads, kv_heads, window, tiles;
    float scale;
  };
  Stage() : product() {}
  union {
    Product product;
    Rotate rotate;
    Attend attend;
  };
};

class FewRows final : public PendingWork {
 public:
  /// `together`: in one launch. Otherwise, stages are launched one by one.
  FewRows(const CudaContext& context, bool together) : context_(context), together_(together) {}
  ~FewRows() override { discard(); }

  /// From now on, ops of this thread describe their work.
  void begin(Stream& stream) override;
  void end() override;
  void discard() noexcept override;
  void launch_all() override;

  static bool take(const EmbeddingDescription& d, const Embedding::Forward& args);
  static bool normalize(const RmsNormDescription& d, const RmsNorm::Forward& args);
  static bool gate(const GluDescription& d, const Glu::Forward& args);
  static bool multiply(const MatmulDescription& d, const Matmul::Forward& args);
  static bool rotate(const RotaryDescription& d, const Rotary::Forward& args);
  static bool attend(const CachedAttentionDescription& d, const CachedAttention::Forward& args, void* workspace);
  static std::size_t workspace_bytes(const CachedAttentionDescription& d);

 private:
  /// Null: the op must do the work itself.
  static FewRows* list_for(std::int64_t rows, DType dtype);
  /// `steps`: Launch::steps, without those of the barrier.
  void add(const Stage& stage, double bytes, double steps);

  CudaContext context_;
  bool together_;
  Stream* stream_ = nullptr;
  DType dtype_ = DType::fp32;
  std::vector<Stage> stages_;
  Launch work_{.kind = "columns"};
};

/// Captures nothing.
class FewRowsGraph final : public CapturedGraph {
 public:
  FewRowsGraph(const CudaContext& context, bool together) : rows_(context, together) {}

 private:
  bool begin(Stream& stream) override {
    rows_.begin(stream);
    return true;
  }
  void end(Stream&) override { rows_.end(); }
  void abandon(Stream&) noexcept override { rows_.discard(); }

  FewRows rows_;
};

}  // namespace lockstep::cuda

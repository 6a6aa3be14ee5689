// Attention as one graph of cuDNN (SDPA), forward or backward, without what surrounds it (attention.cpp). A graph
// computes some samples and some heads of the packed matrix: it receives pointers to the first of them.
//
// Documents are kept apart in one of two ways. As sequences of a ragged batch: the graph has as many sequences as there
// may be documents, each with its length and with the offsets of its first token; those that do not exist have length
// 0. Or by a mask that is added to the scores: every GPU has plans for it, but other documents are computed too.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "kernels/cuda/base/context.h"
#include "lockstep/event.h"
#include "lockstep/ops/attention.h"

namespace lockstep::cuda {

enum class AttentionGraph : std::uint8_t { inference, forward, backward, deterministic_backward };
inline constexpr int kAttentionGraphs = 4;
const char* name(AttentionGraph graph);

enum class Documents : std::uint8_t { none, sequences, mask };

struct AttentionShape {
  AttentionDescription whole;  // whose strides the tensors have
  std::int64_t samples = 0;    // of the graph
  std::int64_t kv_heads = 0;   // of the graph, each with all query heads of its group
  Documents kept_apart = Documents::none;

  std::int64_t heads() const { return kv_heads * whole.group(); }
  std::int64_t tokens() const { return samples * whole.sequence; }
  /// Documents that a graph may have.
  std::int64_t documents() const { return samples * (4 + whole.sequence / 128); }
  bool is_ragged() const { return kept_apart == Documents::sequences; }
  std::size_t mask_bytes() const {
    return kept_apart == Documents::mask
               ? static_cast<std::size_t>(samples * whole.sequence * whole.sequence) * size_bytes(whole.dtype)
               : 0;
  }
};
/// "attention (8, 1024), 9 heads, 3 of keys and values, of 64, bf16, ragged"
std::string text(const AttentionShape& shape);

/// The documents of a graph's samples, in device memory. Offsets are in elements, from the pointers of the tensors.
struct AttentionDocuments {
  std::int32_t* length = nullptr;              // (documents), tokens
  std::int32_t* qkv_offset = nullptr;          // (documents + 1), in q, k, v and their gradients
  std::int32_t* y_offset = nullptr;            // (documents + 1), in y and dy
  std::int32_t* log_sum_exp_offset = nullptr;  // (documents + 1)
  std::int32_t* are_too_many = nullptr;        // 1: there are more documents, and all lengths are 0; else 0
};

struct AttentionTensors {
  const void *q = nullptr, *k = nullptr, *v = nullptr;
  void* y = nullptr;
  /// (samples, heads, sequence); with documents (tokens, heads of the whole). inference: null.
  float* log_sum_exp = nullptr;
  const void* dy = nullptr;
  void *dq = nullptr, *dk = nullptr, *dv = nullptr;
  AttentionDocuments documents{};
  const void* mask = nullptr;  // (samples, 1, sequence, sequence), added to the scores
};

class PlannedAttention {
 public:
  virtual ~PlannedAttention() = default;
  virtual std::size_t workspace_bytes() const = 0;
  /// The plan's name: engine and knobs.
  virtual std::string plan() const = 0;
  /// `workspace` 64-byte aligned.
  virtual void run(const AttentionTensors& tensors, void* workspace, Stream& stream) = 0;
};

/// How graphs keep documents apart on a GPU of this compute capability: as sequences where cuDNN has plans for that,
/// forward and backward. It has none for a deterministic backward pass but on 9.0, where that needs gigabytes.
Documents documents_on(int compute_capability, bool is_deterministic);

/// Whether a GPU of this compute capability has plans for the shape, as far as cuDNN 9.19's answers for GPUs of 8.0 to
/// 12.0 show (test/golden/cuda_plans_*.txt). fp32 has none.
bool may_have_plan(const AttentionShape& shape, int compute_capability);

/// The workspace of cuDNN 9.19. It is exact (test/cuda/plans.cpp compares them), or an upper bound if the shape is
/// ragged.
std::size_t expected_workspace_bytes(AttentionGraph graph, const AttentionShape& shape, int compute_capability);

/// If the backward pass of all samples and heads needs a larger workspace, it is computed in parts.
std::size_t attention_workspace_limit(const CudaContext& context);

/// Null if the graph has no plan for the shape on the device.
std::unique_ptr<PlannedAttention> plan_attention(AttentionGraph graph, const AttentionShape& shape,
                                                 const CudaContext& context);

}  // namespace lockstep::cuda

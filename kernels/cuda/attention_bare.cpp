#include "kernels/cuda/attention_bare.h"

#include "lockstep/error.h"

namespace lockstep::cuda {

const char* name(AttentionGraph graph) {
  constexpr const char* kNames[kAttentionGraphs] = {"inference", "forward", "backward", "deterministic backward"};
  return kNames[static_cast<std::size_t>(graph)];
}

std::string text(const AttentionShape& shape) {
  AttentionDescription part = shape.whole;
  part.batch = shape.samples;
  part.heads = shape.heads();
  part.kv_heads = shape.kv_heads;
  return text(part) + (part.documents ? ", ragged" : "");
}

bool may_have_plan(const AttentionShape& shape, int compute_capability) {
  const AttentionDescription& d = shape.whole;
  constexpr int kFlash = 80, kRagged = 90, kWide = 90;  // compute capabilities
  const bool has_type = d.dtype == DType::bf16 || d.dtype == DType::fp16;
  // Heads must begin at multiples of 16 bytes, and offsets of documents are 32-bit numbers.
  const bool has_size = d.head_dim % 8 == 0 && d.head_dim <= (compute_capability == kWide ? 256 : 128) &&
                        d.sequence > 1 && shape.tokens() * d.packed_width() < std::int64_t{1} << 31;
  return has_type && has_size && compute_capability >= (d.documents ? kRagged : kFlash);
}

std::size_t expected_workspace_bytes(AttentionGraph graph, const AttentionShape& shape) {
  const AttentionDescription& d = shape.whole;
  if (graph == AttentionGraph::inference || graph == AttentionGraph::forward)
    return static_cast<std::size_t>(d.documents ? shape.documents() + 3 : 1) * 256;
  if (d.documents) return attention_workspace_limit();
  // The workspace has dk and dv of each query head in 16 bits, the statistic of each row, and dq in fp32 or, for a
  // deterministic sum, two bytes for each score.
  const auto rounded = [&](std::int64_t to) { return (d.sequence + to - 1) / to * to; };
  const std::int64_t heads = shape.samples * shape.heads(), dq = heads * d.sequence * 4 * d.head_dim;
  const std::int64_t scores = heads * 2 * rounded(128) * rounded(64);
  const bool is_deterministic = graph == AttentionGraph::deterministic_backward;
  return static_cast<std::size_t>((is_deterministic ? scores : dq) + heads * d.sequence * (4 * d.head_dim + 4) + 256);
}

}  // namespace lockstep::cuda

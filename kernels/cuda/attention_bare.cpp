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
  return text(part) + (shape.is_ragged() ? ", ragged" : shape.kept_apart == Documents::mask ? ", masked" : "");
}

Documents documents_on(int compute_capability, bool is_deterministic) {
  constexpr int kFirst = 90, kLast = 119;  // compute capabilities
  const bool has_sequences = compute_capability >= kFirst && compute_capability <= kLast && !is_deterministic;
  return has_sequences ? Documents::sequences : Documents::mask;
}

bool may_have_plan(const AttentionShape& shape, int compute_capability) {
  const AttentionDescription& d = shape.whole;
  constexpr int kFlash = 80, kWide = 90;  // compute capabilities
  const bool has_type = d.dtype == DType::bf16 || d.dtype == DType::fp16;
  // Heads must begin at multiples of 16 bytes, and offsets of documents are 32-bit numbers.
  const bool has_size = d.head_dim % 8 == 0 && d.head_dim <= (compute_capability == kWide ? 256 : 128) &&
                        d.sequence > 1 && shape.tokens() * d.packed_width() < std::int64_t{1} << 31;
  const bool has_mask = shape.kept_apart != Documents::mask || d.sequence % 8 == 0;  // rows of 16 bytes
  return has_type && has_size && has_mask && compute_capability >= kFlash;
}

std::size_t expected_workspace_bytes(AttentionGraph graph, const AttentionShape& shape, int compute_capability) {
  const AttentionDescription& d = shape.whole;
  const bool is_hopper = compute_capability == 90;
  if (graph == AttentionGraph::inference || graph == AttentionGraph::forward)
    return shape.is_ragged() ? static_cast<std::size_t>(shape.documents() + 3) * 256 : is_hopper ? 256 : 0;
  // The workspace has dk and dv of each query head in 16 bits, or on 8.x and 12.x in fp32 unless their sum is
  // deterministic; the statistic of each row; and dq in fp32 or, for a deterministic sum, two bytes for each score.
  const auto rounded = [&](std::int64_t to) { return (d.sequence + to - 1) / to * to; };
  const std::int64_t heads = shape.samples * shape.heads(), dq = heads * d.sequence * 4 * d.head_dim;
  if (shape.is_ragged()) return static_cast<std::size_t>(dq + shape.documents() / shape.samples * (dq + 3 * dq / 5));
  const std::int64_t scores = heads * 2 * rounded(128) * rounded(64);
  const bool is_deterministic = graph == AttentionGraph::deterministic_backward;
  const std::int64_t wide = is_deterministic || (compute_capability >= 90 && compute_capability < 120) ? 4 : 8;
  return static_cast<std::size_t>((is_deterministic ? scores : dq) + heads * d.sequence * (wide * d.head_dim + 4) +
                                  (is_hopper ? 256 : 128));
}

}  // namespace lockstep::cuda

// Attention (lockstep/ops/attention.h): cuDNN's graphs (attention_bare.h) in fp16 and bf16 where the device has plans,
// else our own kernels (attention.h).
//
// A deterministic backward pass needs a large workspace. If it exceeds the limit, the graphs compute fewer samples at
// once, and then fewer heads.
//
// Documents become sequences of a ragged batch, listed on the device. The number of sequences of a graph is fixed.
// Where a micro-batch has more documents, the list is empty, and our own kernels compute the samples instead: they are
// fast with short documents. The choice is made on the device, so that a captured step contains both. Where cuDNN has
// no plans for that, a mask keeps documents apart, which is written before each graph call.
//
// `saved`: log_sum_exp, (batch, heads, sequence) fp32, or (batch, sequence, heads) where cuDNN has written it for
// documents; then the lists of documents.
#include "kernels/cuda/attention.h"

#include <memory>

#include "kernels/cuda/attention_bare.h"
#include "kernels/cuda/base/context.h"
#include "kernels/cuda/base/numbers.h"
#include "lockstep/algorithms.h"
#include "lockstep/workspace.h"

namespace lockstep::cuda {
namespace {

class CudaAttention final : public CudaOp<AttentionDescription> {
 public:
  CudaAttention(const AttentionDescription& d, const CudaContext& context);

  OpMemoryRequirements memory_requirements() const override { return requirements_; }
  std::string describe() const override;
  void run_forward(const Forward& args, const OpMemory& memory, Stream& stream) override;
  void run_backward(const Backward& args, const OpMemory& memory, Stream& stream) override;

 private:
  bool has_graphs() const { return forward_ != nullptr; }
  bool has_lists() const { return has_graphs() && forward_shape_.is_ragged(); }
  bool has_own_kernels() const { return !has_graphs() || has_lists(); }
  void plan_graphs(const CudaContext& context);
  void plan_memory();
  DocumentList list_in(void* memory) const;
  /// The tensors of one graph call, which begin at sample `sample` and key-value head `kv_head`.
  AttentionTensors part_of(const void* qkv, const void* y, float* log_sum_exp, std::int64_t sample,
                           std::int64_t kv_head, void* lists) const;
  AttentionCondition condition(void* lists) const;
  /// The mask of a graph's samples, which begin at `sample`; null if it has none.
  const void* write_mask(const std::int32_t* document_start, std::int64_t sample, const AttentionShape& shape,
                         void* mask, Stream& stream) const;

  AttentionShape forward_shape_, backward_shape_;
  std::unique_ptr<PlannedAttention> forward_, backward_;  // null if our own kernels are used
  OpMemoryRequirements requirements_;
  std::size_t saved_lists_ = 0;                                              // offset in `saved`
  std::size_t forward_lists_ = 0, forward_mask_ = 0, forward_graph_ = 0;     // offsets in the workspace of forward
  std::size_t backward_delta_ = 0, backward_mask_ = 0, backward_graph_ = 0;  // and of backward
};

CudaAttention::CudaAttention(const AttentionDescription& d, const CudaContext& context)
    : PlannedOp(d, context), forward_shape_{d, d.batch, d.kv_heads} {
  const bool is_deterministic = !d.inference && context.algorithms == nullptr;
  if (d.documents) forward_shape_.kept_apart = documents_on(context.compute_capability, is_deterministic);
  backward_shape_ = forward_shape_;
  plan_graphs(context);
  plan_memory();
}

/// The greatest divisor of n that is at most `limit`.
std::int64_t divisor(std::int64_t n, std::int64_t limit) {
  std::int64_t d = std::max<std::int64_t>(1, limit);
  while (n % d != 0) --d;
  return d;
}

void CudaAttention::plan_graphs(const CudaContext& context) {
  const auto limit = static_cast<double>(attention_workspace_limit(context));
  if (!d_.inference) {
    const auto kind = context.algorithms ? AttentionGraph::backward : AttentionGraph::deterministic_backward;
    AttentionShape& s = backward_shape_;
    while ((backward_ = plan_attention(kind, s, context))) {
      const double part = limit / static_cast<double>(backward_->workspace_bytes() + s.mask_bytes());
      if (part >= 1 || (s.samples == 1 && s.kv_heads == 1)) break;
      const auto smaller = [&](std::int64_t n) {
        return divisor(n, std::min(n - 1, static_cast<std::int64_t>(static_cast<double>(n) * part)));
      };
      if (s.samples > 1)
        s.samples = smaller(s.samples);
      else
        s.kv_heads = smaller(s.kv_heads);
    }
    if (!backward_) return;
    if (s.is_ragged()) forward_shape_.samples = s.samples;  // forward and backward share the lists of documents
  }
  if (forward_shape_.kept_apart == Documents::mask)
    forward_shape_.samples =
        divisor(d_.batch, static_cast<std::int64_t>(limit / static_cast<double>(forward_shape_.mask_bytes()) *
                                                    static_cast<double>(d_.batch)));
  forward_ =
      plan_attention(d_.inference ? AttentionGraph::inference : AttentionGraph::forward, forward_shape_, context);
  if (!forward_) backward_ = nullptr;
}

void CudaAttention::plan_memory() {
  const std::int64_t n_lists = d_.batch / forward_shape_.samples;
  const std::size_t lists_bytes =
      has_lists() ? static_cast<std::size_t>(n_lists * list_in(nullptr).stride) * sizeof(std::int32_t) : 0;
  WorkspacePlan forward, backward, saved;
  if (d_.inference) {
    forward_lists_ = forward.take(lists_bytes);
  } else {
    saved.take(static_cast<std::size_t>(d_.batch * d_.heads * d_.sequence) * sizeof(float));
    saved_lists_ = saved.take(lists_bytes);
    if (has_own_kernels()) backward_delta_ = backward.take(attention_backward_workspace_bytes(d_));
    if (has_graphs()) {
      backward_mask_ = backward.take(backward_shape_.mask_bytes());
      backward_graph_ = backward.take(backward_->workspace_bytes());
    }
  }
  if (has_graphs()) {
    forward_mask_ = forward.take(forward_shape_.mask_bytes());
    forward_graph_ = forward.take(forward_->workspace_bytes());
  }
  requirements_ = {.forward_workspace_bytes = forward.size_bytes(),
                   .backward_workspace_bytes = backward.size_bytes(),
                   .saved_bytes = saved.size_bytes()};
}

std::string CudaAttention::describe() const {
  if (!has_graphs()) return text(d_) + ": own kernels";
  std::string out = fmt::format("{}: cuDNN, forward {}", text(d_), forward_->plan());
  if (backward_) {
    out += fmt::format("; backward {}", backward_->plan());
    if (backward_shape_.samples < d_.batch)
      out += fmt::format(", by {} of {} samples", backward_shape_.samples, d_.batch);
    if (backward_shape_.kv_heads < d_.kv_heads)
      out += fmt::format(", by {} of {} heads", backward_shape_.heads(), d_.heads);
  }
  if (forward_shape_.kept_apart == Documents::mask) out += "; documents by a mask";
  if (has_lists())
    out += fmt::format("; own kernels for more than {} documents per {}", forward_shape_.documents(),
                       forward_shape_.samples == 1 ? "sample" : fmt::format("{} samples", forward_shape_.samples));
  return out;
}

DocumentList CudaAttention::list_in(void* memory) const {
  const auto n = static_cast<int>(forward_shape_.documents());
  const int aligned = (n + 1 + 15) / 16 * 16;  // 64 bytes
  return {.memory = static_cast<std::int32_t*>(memory),
          .stride = 4 * aligned + 16,
          .qkv_offset = aligned,
          .y_offset = 2 * aligned,
          .log_sum_exp_offset = 3 * aligned,
          .are_too_many = 4 * aligned,
          .sequence = static_cast<int>(d_.sequence),
          .n_tokens = static_cast<int>(forward_shape_.tokens()),
          .capacity = n,
          .elements = {static_cast<int>(d_.packed_width()), static_cast<int>(d_.heads * d_.head_dim),
                       static_cast<int>(d_.heads)}};
}

AttentionCondition CudaAttention::condition(void* lists) const {
  if (!has_lists()) return {};
  const DocumentList list = list_in(lists);
  return {.flags = list.memory + list.are_too_many,
          .stride = list.stride,
          .samples_per_flag = static_cast<int>(forward_shape_.samples)};
}

AttentionTensors CudaAttention::part_of(const void* qkv, const void* y, float* log_sum_exp, std::int64_t sample,
                                        std::int64_t kv_head, void* lists) const {
  const std::int64_t head = kv_head * d_.group(), tokens = sample * d_.sequence;
  const auto in = [&](const void* tensor, std::int64_t element) {
    return static_cast<std::byte*>(const_cast<void*>(tensor)) +
           element * static_cast<std::int64_t>(size_bytes(d_.dtype));
  };
  const auto packed = [&](std::int64_t first_head) {
    return in(qkv, tokens * d_.packed_width() + first_head * d_.head_dim);
  };
  AttentionTensors out{.q = packed(head),
                       .k = packed(d_.heads + kv_head),
                       .v = packed(d_.heads + d_.kv_heads + kv_head),
                       .y = in(y, (tokens * d_.heads + head) * d_.head_dim)};
  // Without lists, log_sum_exp is (samples, heads, sequence). If a graph has only a part of the heads, it has one
  // sample.
  if (log_sum_exp != nullptr)
    out.log_sum_exp = log_sum_exp + tokens * d_.heads + head * (has_lists() ? 1 : d_.sequence);
  if (has_lists()) {
    const DocumentList list = list_in(lists);
    std::int32_t* const first = list.memory + sample / forward_shape_.samples * list.stride;
    out.documents = {.length = first,
                     .qkv_offset = first + list.qkv_offset,
                     .y_offset = first + list.y_offset,
                     .log_sum_exp_offset = first + list.log_sum_exp_offset,
                     .are_too_many = first + list.are_too_many};
  }
  return out;
}

const void* CudaAttention::write_mask(const std::int32_t* document_start, std::int64_t sample,
                                      const AttentionShape& shape, void* mask, Stream& stream) const {
  if (shape.kept_apart != Documents::mask) return nullptr;
  attention_mask(d_, document_start + sample * d_.sequence, shape.samples, mask, stream);
  return mask;
}

void CudaAttention::run_forward(const Forward& args, const OpMemory& memory, Stream& stream) {
  auto* const log_sum_exp = d_.inference ? nullptr : static_cast<float*>(memory.saved);
  void* const lists = d_.inference ? at(memory.workspace, forward_lists_) : at(memory.saved, saved_lists_);
  if (has_graphs()) {
    const std::int64_t samples = forward_shape_.samples;
    if (has_lists())
      attention_documents(args.document_start, list_in(lists), static_cast<int>(d_.batch / samples), stream);
    for (std::int64_t sample = 0; sample < d_.batch; sample += samples) {
      AttentionTensors part = part_of(args.qkv, args.y, log_sum_exp, sample, 0, lists);
      part.mask = write_mask(args.document_start, sample, forward_shape_, at(memory.workspace, forward_mask_), stream);
      forward_->run(part, at(memory.workspace, forward_graph_), stream);
    }
  }
  if (has_own_kernels()) attention_forward(d_, args, log_sum_exp, condition(lists), stream);
}

void CudaAttention::run_backward(const Backward& args, const OpMemory& memory, Stream& stream) {
  require(!d_.inference, ErrorCode::internal, "{} was planned for inference, and backward was called", text(d_));
  auto* const log_sum_exp = static_cast<float*>(memory.saved);
  void* const lists = at(memory.saved, saved_lists_);
  const AttentionShape& s = backward_shape_;
  for (std::int64_t sample = 0; has_graphs() && sample < d_.batch; sample += s.samples) {
    const void* const mask = write_mask(args.document_start, sample, s, at(memory.workspace, backward_mask_), stream);
    for (std::int64_t kv_head = 0; kv_head < d_.kv_heads; kv_head += s.kv_heads) {
      AttentionTensors part = part_of(args.qkv, args.y, log_sum_exp, sample, kv_head, lists);
      part.mask = mask;
      const AttentionTensors gradients = part_of(args.dqkv, args.dy, nullptr, sample, kv_head, lists);
      part.dy = gradients.y;
      part.dq = const_cast<void*>(gradients.q);
      part.dk = const_cast<void*>(gradients.k);
      part.dv = const_cast<void*>(gradients.v);
      backward_->run(part, at(memory.workspace, backward_graph_), stream);
    }
  }
  if (has_own_kernels())
    attention_backward(d_, args, log_sum_exp, at<float>(memory.workspace, backward_delta_), condition(lists), stream);
}

}  // namespace

std::unique_ptr<Attention> make_attention(const AttentionDescription& d, const CudaContext& context) {
  require(d.batch < 65536 && d.sequence * d.heads < std::int64_t{1} << 31, ErrorCode::not_supported,
          "{}: on a GPU, a micro-batch may have at most 65,535 samples, and 2^31 rows of all heads of a sample",
          text(d));
  dispatch(d.dtype, [](auto*) {});
  return std::make_unique<CudaAttention>(d, context);
}

}  // namespace lockstep::cuda

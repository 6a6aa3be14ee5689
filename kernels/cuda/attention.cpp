// Attention (lockstep/ops/attention.h). `saved`: log_sum_exp, (batch, heads, sequence) fp32.
#include <memory>

#include "kernels/cuda/attention.h"
#include "kernels/cuda/base/context.h"
#include "kernels/cuda/base/numbers.h"

namespace lockstep::cuda {
namespace {

class CudaAttention final : public Attention {
 public:
  explicit CudaAttention(const AttentionDescription& d) : d_(d) {}

  OpNeeds needs() const override {
    if (d_.inference) return {};
    return {.backward_workspace_bytes = attention_backward_workspace_bytes(d_),
            .saved_bytes = static_cast<std::size_t>(d_.batch * d_.heads * d_.sequence) * sizeof(float)};
  }
  std::string describe() const override { return text(d_) + ": own kernels"; }

  void run_forward(const Forward& args, const OpMemory& memory, Stream& stream) override {
    attention_forward(d_, args, d_.inference ? nullptr : static_cast<float*>(memory.saved), stream);
  }
  void run_backward(const Backward& args, const OpMemory& memory, Stream& stream) override {
    require(!d_.inference, ErrorCode::internal, "{} was planned for inference, and backward was called", text(d_));
    attention_backward(d_, args, static_cast<const float*>(memory.saved), static_cast<float*>(memory.workspace),
                       stream);
  }

 private:
  AttentionDescription d_;
};

}  // namespace

std::unique_ptr<Attention> make_attention(const AttentionDescription& d, const CudaContext&) {
  require_possible(d);
  require(d.batch < 65536 && d.sequence * d.heads < std::int64_t{1} << 31, ErrorCode::not_supported,
          "{}: on a GPU, a micro-batch may have at most 65,535 samples of 2^31 rows of a head", text(d));
  dispatch(d.dtype, [](auto*) {});
  return std::make_unique<CudaAttention>(d);
}

}  // namespace lockstep::cuda

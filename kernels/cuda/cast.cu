// Converts numbers to another type on the device. Contract: lockstep/ops/cast.h.
#include <memory>

#include "kernels/cuda/base/context.h"
#include "kernels/cuda/base/rows.h"
#include "lockstep/ops/cast.h"

namespace lockstep::cuda {
namespace {

constexpr int kWidth = 8;  // numbers per thread at a time: 16 bytes of the narrower type

/// Converts the first `n_packed` elements, a multiple of kWidth, in groups of kWidth, and the others one by one.
/// kAccumulate: target += source.
template <typename From, typename To, bool kAccumulate>
__global__ void cast(const From* source, To* target, std::size_t n_packed, std::size_t n_elements) {
  const std::size_t first = std::size_t{blockIdx.x} * blockDim.x + threadIdx.x;
  const std::size_t stride = std::size_t{gridDim.x} * blockDim.x;
  for (std::size_t i = first * kWidth; i < n_packed; i += stride * kWidth) {
    Floats<kWidth> values = load_floats<kWidth>(source + i);
    if constexpr (kAccumulate) {
      const Floats<kWidth> before = load_floats<kWidth>(target + i);
#pragma unroll
      for (int j = 0; j < kWidth; ++j) values[j] = before[j] + values[j];
    }
    store_floats(target + i, values);
  }
  for (std::size_t i = n_packed + first; i < n_elements; i += stride) {
    const float value = to_float(source[i]);
    target[i] = from_float<To>(kAccumulate ? to_float(target[i]) + value : value);
  }
}

template <typename From, typename To>
class CudaCast final : public CudaOp<CastDescription> {
 public:
  using PlannedOp::PlannedOp;

  std::string describe() const override { return "own kernel"; }

  void run_apply(const Apply& args, const OpMemory&, Stream& stream) override {
    const unsigned limit = context_.blocks(8);
    const auto* source = static_cast<const From*>(args.source);
    auto* target = static_cast<To*>(args.target);
    const std::size_t n_packed = are_aligned(source, target) ? args.n_elements / kWidth * kWidth : 0;
    const std::size_t n_items = n_packed / kWidth + (args.n_elements - n_packed);
    auto* kernel = cast<From, To, false>;
    if constexpr (std::is_same_v<To, float>) {
      if (args.accumulate) kernel = cast<From, To, true>;
    } else {
      require(!args.accumulate, ErrorCode::internal, "a cast adds only to fp32");
    }
    const std::size_t of_element = sizeof(From) + sizeof(To) * (args.accumulate ? 2 : 1);
    launch(kernel,
           {.blocks = blocks_for(n_items, 256, limit),
            .work = {.kind = "packs", .bytes = static_cast<double>(args.n_elements * of_element)}},
           stream, source, target, n_packed, args.n_elements);
  }
};

}  // namespace

std::unique_ptr<Cast> make_cast(const CastDescription& d, const CudaContext& context) {
  if (d.from == DType::fp32 && d.to == DType::bf16) return std::make_unique<CudaCast<float, Bfloat16>>(d, context);
  if (d.from == DType::bf16 && d.to == DType::fp32) return std::make_unique<CudaCast<Bfloat16, float>>(d, context);
  if (d.from == DType::fp32 && d.to == DType::fp16) return std::make_unique<CudaCast<float, Half>>(d, context);
  if (d.from == DType::fp16 && d.to == DType::fp32) return std::make_unique<CudaCast<Half, float>>(d, context);
  fail(ErrorCode::not_supported, "a cast from {} to {}: only fp32 to bf16 or fp16 and back is possible", name(d.from),
       name(d.to));
}

}  // namespace lockstep::cuda

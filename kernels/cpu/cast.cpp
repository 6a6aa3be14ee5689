// Converts numbers to another type. Contract: lockstep/ops/cast.h.
#include <memory>
#include <type_traits>

#include "kernels/cpu/base/parallel.h"
#include "lockstep/bf16.h"
#include "lockstep/error.h"
#include "lockstep/fp16.h"
#include "lockstep/ops/cast.h"

namespace lockstep::cpu {
namespace {

void convert_one(float from, Bf16& to) { to = to_bf16(from); }
void convert_one(float from, Fp16& to) { to = to_fp16(from); }
template <typename Half>
void convert_one(Half from, float& to) {
  to = to_float(from);
}

template <typename From, typename To>
class CpuCast final : public CpuOp<CastDescription> {
 public:
  using PlannedOp::PlannedOp;

  std::string describe() const override { return "own kernel"; }

  void run_apply(const Apply& args, const OpMemory&, Stream&) override {
    require(!args.accumulate || std::is_same_v<To, float>, ErrorCode::internal, "a cast adds only to fp32");
    const From* source = static_cast<const From*>(args.source);
    To* target = static_cast<To*>(args.target);
    const auto n = static_cast<std::int64_t>(args.n_elements);
    run_ranges(part_count(context_, n * static_cast<std::int64_t>(sizeof(From) + sizeof(To))), n, [&](Range range) {
      if constexpr (std::is_same_v<To, float>) {
        if (args.accumulate) {
          for (std::int64_t i = range.begin; i < range.end; ++i) target[i] += to_float(source[i]);
          return;
        }
      }
      for (std::int64_t i = range.begin; i < range.end; ++i) convert_one(source[i], target[i]);
    });
  }
};

}  // namespace

std::unique_ptr<Cast> make_cast(const CastDescription& d, const CpuContext& context) {
  if (d.from == DType::fp32 && d.to == DType::bf16) return std::make_unique<CpuCast<float, Bf16>>(d, context);
  if (d.from == DType::bf16 && d.to == DType::fp32) return std::make_unique<CpuCast<Bf16, float>>(d, context);
  if (d.from == DType::fp32 && d.to == DType::fp16) return std::make_unique<CpuCast<float, Fp16>>(d, context);
  if (d.from == DType::fp16 && d.to == DType::fp32) return std::make_unique<CpuCast<Fp16, float>>(d, context);
  fail(ErrorCode::not_supported, "a cast from {} to {}: only fp32 to bf16 or fp16 and back is possible", name(d.from),
       name(d.to));
}

}  // namespace lockstep::cpu

// One leaf of a sum in the order of a binary tree (lockstep/ops/ordered_sum.h).
#include <algorithm>
#include <array>
#include <cstring>
#include <memory>

#include "kernels/cpu/base/parallel.h"
#include "lockstep/bf16.h"
#include "lockstep/error.h"
#include "lockstep/ops/ordered_sum.h"

namespace lockstep::cpu {
namespace {

template <typename T>
class CpuOrderedSum final : public CpuOp<OrderedSumDescription> {
 public:
  using PlannedOp::PlannedOp;

  std::string describe() const override { return "own kernel: each element read and written once"; }

  void run_apply(const Apply& args, const OpMemory&, Stream&) override {
    const auto blocks = static_cast<std::int64_t>((args.n_elements + kBlock - 1) / kBlock);
    run_ranges(part_count(context_, blocks * kBlockBytes), blocks, [&](Range range) {
      for (std::int64_t block = range.begin; block < range.end; ++block)
        sum_block(args, static_cast<std::size_t>(block) * kBlock);
    });
  }

 private:
  static constexpr std::int64_t kBlockBytes = 4096;  // stays in the L1 cache from source to source
  static constexpr std::size_t kBlock = kBlockBytes / sizeof(T);

  static void sum_block(const Apply& args, std::size_t done) {
    const std::size_t begin = args.begin + done, n = std::min(kBlock, args.n_elements - done);
    alignas(64) std::array<T, kBlock> total;
    std::memcpy(total.data(), static_cast<const T*>(args.value) + begin, n * sizeof(T));
    for (std::size_t s = args.open.size(); s-- > 0;) {
      const T* other = static_cast<const T*>(args.open[s]) + begin;
      for (std::size_t i = 0; i < n; ++i) total[i] = total[i] + other[i];
    }
    std::memcpy(static_cast<T*>(args.target) + begin, total.data(), n * sizeof(T));
  }
};

}  // namespace

std::unique_ptr<OrderedSum> make_ordered_sum(const OrderedSumDescription& d, const CpuContext& context) {
  if (d.dtype == DType::fp64) return std::make_unique<CpuOrderedSum<double>>(d, context);
  if (d.dtype == DType::bf16) return std::make_unique<CpuOrderedSum<Bf16>>(d, context);
  require(d.dtype == DType::fp32, ErrorCode::not_supported, "an ordered sum is of fp32, fp64 or bf16, not {}",
          name(d.dtype));
  return std::make_unique<CpuOrderedSum<float>>(d, context);
}

}  // namespace lockstep::cpu

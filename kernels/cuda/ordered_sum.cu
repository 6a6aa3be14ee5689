// One leaf of a sum in the order of a tree: each thread adds one element of all sources, from the innermost sum
// outwards.
//
// Bytes moved: every source read once and the target written once, which is the floor; a copy onto itself moves none.
#include <algorithm>
#include <memory>

#include "kernels/cuda/base/items.h"
#include "lockstep/ops/ordered_sum.h"

namespace lockstep::cuda {
namespace {

template <typename T>
struct Sources {
  const T* value = nullptr;
  const T* open[OrderedSum::Open::kMax] = {};
  int n_open = 0;
  T* target = nullptr;
};

__device__ inline void add(float& total, float other) { total += other; }
__device__ inline void add(double& total, double other) { total += other; }
__device__ inline void add(Bfloat16& total, Bfloat16 other) {
  total = from_float<Bfloat16>(to_float(total) + to_float(other));
}

template <typename T>
__global__ void add_sources(const __grid_constant__ Sources<T> sources, PackWalk<T> walk) {
  walk.for_each([&](auto width, std::int64_t i) {
    Pack<T> total = load_values<width>(sources.value + i);
    for (int s = sources.n_open - 1; s >= 0; --s) {
      const Pack<T> other = load_values<width>(sources.open[s] + i);
#pragma unroll
      for (int j = 0; j < width; ++j) add(total.values[j], other.values[j]);
    }
    store_values<width>(sources.target + i, total);
  });
}

template <typename T>
class CudaOrderedSum final : public CudaOp<OrderedSumDescription> {
 public:
  using PlannedOp::PlannedOp;

  std::string describe() const override { return "own kernel: each element read and written once"; }

  void run_apply(const Apply& args, const OpMemory&, Stream& stream) override {
    if (args.open.empty() && args.target == args.value) return;
    Sources<T> sources{.value = static_cast<const T*>(args.value) + args.begin,
                       .n_open = static_cast<int>(args.open.size()),
                       .target = static_cast<T*>(args.target) + args.begin};
    bool aligned = are_aligned(sources.value, sources.target);
    for (std::size_t s = 0; s < args.open.size(); ++s) {
      sources.open[s] = static_cast<const T*>(args.open[s]) + args.begin;
      aligned = aligned && are_aligned(sources.open[s]);
    }
    const PackWalk<T> walk(static_cast<std::int64_t>(args.n_elements), aligned);
    launch(add_sources<T>, walk.grid(context_), stream, sources, walk);
  }
};

}  // namespace

std::unique_ptr<OrderedSum> make_ordered_sum(const OrderedSumDescription& d, const CudaContext& context) {
  if (d.dtype == DType::fp64) return std::make_unique<CudaOrderedSum<double>>(d, context);
  if (d.dtype == DType::bf16) return std::make_unique<CudaOrderedSum<Bfloat16>>(d, context);
  require(d.dtype == DType::fp32, ErrorCode::not_supported, "an ordered sum is of fp32, fp64 or bf16, not {}",
          name(d.dtype));
  return std::make_unique<CudaOrderedSum<float>>(d, context);
}

}  // namespace lockstep::cuda

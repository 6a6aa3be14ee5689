// One leaf of a sum in the order of a tree: each thread adds one element of all sources, from the innermost sum
// outwards.
//
// Bytes moved: every source read once and the target written once, which is the floor; a copy onto itself moves none.
#include <algorithm>
#include <memory>

#include "kernels/cuda/base/context.h"
#include "kernels/cuda/base/launch.h"
#include "kernels/cuda/base/numbers.h"
#include "lockstep/ops/ordered_sum.h"

namespace lockstep::cuda {
namespace {

constexpr unsigned kThreads = 256;

template <typename T>
struct Sources {
  const T* value = nullptr;
  const T* open[OrderedSum::Open::kMax] = {};
  int n_open = 0;
  T* target = nullptr;
};

/// Adds elements in groups of Pack<T>. Pointers are aligned to 16 bytes.
template <typename T>
__global__ void __launch_bounds__(kThreads) add_packs(const __grid_constant__ Sources<T> sources, std::size_t n_packs) {
  const std::size_t stride = std::size_t{gridDim.x} * blockDim.x;
  for (std::size_t i = std::size_t{blockIdx.x} * blockDim.x + threadIdx.x; i < n_packs; i += stride) {
    Pack<T> total = load_pack(sources.value + i * Pack<T>::kSize);
    for (int s = sources.n_open - 1; s >= 0; --s) {
      const Pack<T> other = load_pack(sources.open[s] + i * Pack<T>::kSize);
#pragma unroll
      for (int j = 0; j < Pack<T>::kSize; ++j) total.values[j] += other.values[j];
    }
    store_pack(sources.target + i * Pack<T>::kSize, total);
  }
}

template <typename T>
__global__ void __launch_bounds__(kThreads)
    add_elements(const __grid_constant__ Sources<T> sources, std::size_t begin, std::size_t end) {
  const std::size_t stride = std::size_t{gridDim.x} * blockDim.x;
  for (std::size_t i = begin + std::size_t{blockIdx.x} * blockDim.x + threadIdx.x; i < end; i += stride) {
    T total = sources.value[i];
    for (int s = sources.n_open - 1; s >= 0; --s) total += sources.open[s][i];
    sources.target[i] = total;
  }
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
    const std::size_t n_packs = aligned ? args.n_elements / Pack<T>::kSize : 0, done = n_packs * Pack<T>::kSize;
    launch(add_packs<T>, {.blocks = blocks_for(n_packs, kThreads, context_.blocks(8)), .threads = kThreads}, stream,
           sources, n_packs);
    launch(add_elements<T>,
           {.blocks = blocks_for(args.n_elements - done, kThreads, context_.blocks(8)), .threads = kThreads}, stream,
           sources, done, args.n_elements);
  }
};

}  // namespace

std::unique_ptr<OrderedSum> make_ordered_sum(const OrderedSumDescription& d, const CudaContext& context) {
  if (d.dtype == DType::fp64) return std::make_unique<CudaOrderedSum<double>>(d, context);
  require(d.dtype == DType::fp32, ErrorCode::not_supported, "an ordered sum is of fp32 or fp64, not {}", name(d.dtype));
  return std::make_unique<CudaOrderedSum<float>>(d, context);
}

}  // namespace lockstep::cuda

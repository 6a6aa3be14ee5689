// y = a + b and its gradients (lockstep/ops/add.h), 16 bytes per thread at a time.
// Bytes moved: each tensor is read or written once; no kernel can move less.
#include <memory>

#include "kernels/cuda/base/context.h"
#include "kernels/cuda/base/launch.h"
#include "kernels/cuda/base/numbers.h"
#include "lockstep/ops/add.h"

namespace lockstep::cuda {
namespace {

/// y = a + b, or y = a if `b` is null.
template <typename T>
__global__ void add_pass(const T* a, const T* b, T* y, std::int64_t n_packs, std::int64_t n) {
  constexpr int kSize = Pack<T>::kSize;
  const std::int64_t first = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  const std::int64_t stride = std::int64_t{gridDim.x} * blockDim.x;
  for (std::int64_t i = first; i < n_packs; i += stride) {
    Pack<T> sum = load_pack(a + kSize * i);
    if (b != nullptr) {
      const Pack<T> other = load_pack(b + kSize * i);
#pragma unroll
      for (int j = 0; j < kSize; ++j)
        sum.values[j] = from_float<T>(to_float(sum.values[j]) + to_float(other.values[j]));
    }
    store_pack(y + kSize * i, sum);
  }
  for (std::int64_t i = n_packs * kSize + first; i < n; i += stride)
    y[i] = b != nullptr ? from_float<T>(to_float(a[i]) + to_float(b[i])) : a[i];
}

class CudaAdd final : public CudaOp<AddDescription> {
 public:
  using PlannedOp::PlannedOp;

  std::string describe() const override { return "own kernel, one pass"; }

  void run_forward(const Forward& args, const OpMemory&, Stream& stream) override {
    pass(args.a, args.b, args.y, stream);
  }
  void run_backward(const Backward& args, const OpMemory&, Stream& stream) override {
    pass_on(args.dy, args.da, args.da_mode, stream);
    pass_on(args.dy, args.db, args.db_mode, stream);
  }

 private:
  void pass_on(const void* dy, void* gradient, GradientMode mode, Stream& stream) const {
    if (mode == GradientMode::accumulate) return pass(gradient, dy, gradient, stream);
    if (mode == GradientMode::skip || gradient == dy) return;
    pass(dy, nullptr, gradient, stream);
  }

  void pass(const void* a, const void* b, void* y, Stream& stream) const {
    dispatch(d_.dtype, [&]<typename T>(T*) {
      const std::int64_t n = d_.n_elements, n_packs = are_aligned(a, b, y) ? n / Pack<T>::kSize : 0;
      const auto n_items = static_cast<std::size_t>(n_packs + n - n_packs * Pack<T>::kSize);
      const unsigned limit = context_.blocks(8);
      launch(add_pass<T>,
             {.blocks = blocks_for(n_items, 256, limit),
              .work = {.kind = "packs", .bytes = moved_bytes(b != nullptr ? 3 : 2, n, 1, sizeof(T))}},
             stream, static_cast<const T*>(a), static_cast<const T*>(b), static_cast<T*>(y), n_packs, n);
    });
  }
};

}  // namespace

std::unique_ptr<Add> make_add(const AddDescription& d, const CudaContext& context) {
  require(d.n_elements > 0, ErrorCode::op_description, "a sum of two tensors of {} elements", d.n_elements);
  dispatch(d.dtype, [](auto*) {});
  return std::make_unique<CudaAdd>(d, context);
}

}  // namespace lockstep::cuda

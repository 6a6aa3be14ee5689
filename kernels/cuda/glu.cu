// Gated linear units (lockstep/ops/glu.h), computed in fp32, 16 bytes per thread at a time.
// Bytes moved, where E is the size of y: forward 3E (reads x, writes y); backward 5E (reads x and dy, writes dx), or 7E
// if it accumulates. No kernel can move less.
#include <memory>

#include "kernels/cuda/activation_functions.h"
#include "kernels/cuda/base/context.h"
#include "kernels/cuda/base/rows.h"
#include "kernels/cuda/matmul_few_rows.h"
#include "lockstep/ops/glu.h"

namespace lockstep::cuda {
namespace {

constexpr unsigned kThreads = 256;  // of a block, at most

/// The column of a thread is the same in all of its rows, which blockIdx.y selects.
template <typename F, typename T, int kN>
__global__ void __launch_bounds__(kThreads) glu_forward(const T* x, T* y, std::int64_t rows, std::int64_t width) {
  const std::int64_t c = (std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x) * kN;
  if (c >= width) return;
  for (std::int64_t row = blockIdx.y; row < rows; row += gridDim.y) {
    const auto gates = load_vector<kN>(x + 2 * row * width + c), ups = load_vector<kN>(x + (2 * row + 1) * width + c);
    Floats<kN> out;
#pragma unroll
    for (int j = 0; j < kN; ++j) out[j] = F::value(gates[j]) * ups[j];
    store_floats(y + row * width + c, out);
  }
}

template <typename F, typename T, int kN>
__global__ void __launch_bounds__(kThreads)
    glu_backward(const T* x, const T* dy, T* dx, bool accumulate, std::int64_t rows, std::int64_t width) {
  const std::int64_t c = (std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x) * kN;
  if (c >= width) return;
  for (std::int64_t row = blockIdx.y; row < rows; row += gridDim.y) {
    const std::int64_t of_gates = 2 * row * width + c, of_ups = of_gates + width;
    const auto gates = load_vector<kN>(x + of_gates), ups = load_vector<kN>(x + of_ups);
    const auto gradients = load_vector<kN>(dy + row * width + c);
    Vector<T, kN> gates_before{}, ups_before{};
    if (accumulate) {
      gates_before = load_vector<kN>(static_cast<const T*>(dx + of_gates));
      ups_before = load_vector<kN>(static_cast<const T*>(dx + of_ups));
    }
    Floats<kN> dgates, dups;
#pragma unroll
    for (int j = 0; j < kN; ++j) {
      dgates[j] = gates_before[j] + gradients[j] * ups[j] * F::derivative(gates[j]);
      dups[j] = ups_before[j] + gradients[j] * F::value(gates[j]);
    }
    store_floats(dx + of_gates, dgates);
    store_floats(dx + of_ups, dups);
  }
}

class CudaGlu final : public CudaOp<GluDescription> {
 public:
  using PlannedOp::PlannedOp;

  std::string describe() const override { return "own kernels, one pass forward and one backward"; }

  void run_forward(const Forward& args, const OpMemory&, Stream& stream) override {
    if (FewRows::gate(d_, args)) return;
    with_function(d_.function, d_.dtype, [&]<typename F, typename T>(F, T*) {
      const bool by_packs = allows_packs<T>(d_.width, args.x, args.y);
      launch(by_packs ? glu_forward<F, T, Pack<T>::kSize> : glu_forward<F, T, 1>,
             grid(by_packs ? Pack<T>::kSize : 1, 3), stream, static_cast<const T*>(args.x), static_cast<T*>(args.y),
             d_.rows, d_.width);
    });
  }

  void run_backward(const Backward& args, const OpMemory&, Stream& stream) override {
    if (args.dx_mode == GradientMode::skip) return;
    with_function(d_.function, d_.dtype, [&]<typename F, typename T>(F, T*) {
      const bool by_packs = allows_packs<T>(d_.width, args.x, args.dy, args.dx);
      launch(by_packs ? glu_backward<F, T, Pack<T>::kSize> : glu_backward<F, T, 1>,
             grid(by_packs ? Pack<T>::kSize : 1, args.dx_mode == GradientMode::accumulate ? 7 : 5), stream,
             static_cast<const T*>(args.x), static_cast<const T*>(args.dy), static_cast<T*>(args.dx),
             args.dx_mode == GradientMode::accumulate, d_.rows, d_.width);
    });
  }

 private:
  /// The grid has the blocks along a row, whose last one is nearly full, and enough rows of blocks to fill the device.
  Grid grid(int numbers_per_thread, int n_passes) const {
    const std::int64_t threads = d_.width / numbers_per_thread;
    const auto columns = static_cast<unsigned>((threads + kThreads - 1) / kThreads);
    return {.blocks = columns,
            .threads = static_cast<unsigned>((threads + 32 * columns - 1) / (32 * columns)) * 32,
            .blocks_y = blocks_for(static_cast<std::size_t>(d_.rows), 1, std::max(context_.blocks(8) / columns, 1u)),
            .work = {.kind = numbers_per_thread > 1 ? "packs" : "elements",
                     .bytes = moved_bytes(n_passes, d_.rows, d_.width, size_bytes(d_.dtype))}};
  }
};

}  // namespace

std::unique_ptr<Glu> make_glu(const GluDescription& d, const CudaContext& context) {
  dispatch(d.dtype, [](auto*) {});
  return std::make_unique<CudaGlu>(d, context);
}

}  // namespace lockstep::cuda

// The norm in two stages: each block writes the fp64 sum of squares of its tile, and one block adds these up. The order
// of additions depends on the arena alone: the same bits on every device.
//
// Bytes moved: 4 per element, or 2 in bf16, read once, and 8 per tile of 4,096, written and read. No kernel can move
// less.
#include <memory>

#include "kernels/cuda/base/block_sum.h"
#include "kernels/cuda/base/context.h"
#include "kernels/cuda/base/segments.h"
#include "lockstep/ops/clip_norm.h"

namespace lockstep::cuda {
namespace {

constexpr unsigned kFinishThreads = 1024;

template <typename T>
__global__ void __launch_bounds__(kTileThreads)
    sum_squares_of_tiles(std::size_t n_elements, const T* gradients, bool aligned, double* sums) {
  const std::size_t begin = std::size_t{blockIdx.x} * kTileElements, left = n_elements - begin;
  const Tile tile{.begin = begin, .n_elements = static_cast<unsigned>(left < kTileElements ? left : kTileElements)};
  const double sum = block_sum<kTileThreads>(sum_of_squares(gradients, tile, aligned));
  if (threadIdx.x == 0) sums[blockIdx.x] = sum;
}

__global__ void __launch_bounds__(kFinishThreads)
    add_tiles(unsigned n_tiles, double max_norm, LossScaling loss_scaling, ClipNorm::Apply args) {
  double sum = 0;
  for (unsigned i = threadIdx.x; i < n_tiles; i += kFinishThreads) sum += args.tile_sums[i];
  sum = block_sum<kFinishThreads>(sum);
  if (threadIdx.x == 0) finish_norm(sum, max_norm, loss_scaling, args);
}

class CudaClipNorm final : public ClipNorm {
 public:
  explicit CudaClipNorm(const ClipNormDescription& d) : d_(d) {}

  std::string describe() const override { return "own kernels: sums of squares in fp64"; }

  void run_sum_tiles(const SumTiles& args, const OpMemory&, Stream& stream) override {
    const std::size_t n = args.range.n_elements;
    const auto n_tiles = static_cast<unsigned>(n_tiles_of(n));
    dispatch(args.gradients.dtype, [&]<typename T>(T*) {
      const auto* const gradients = static_cast<const T*>(args.gradients.data);
      launch(sum_squares_of_tiles<T>,
             {.blocks = n_tiles,
              .threads = kTileThreads,
              .work = {.kind = "packs", .bytes = moved_bytes(1, n_tiles, kTileElements, sizeof(T))}},
             stream, n, gradients, are_aligned(gradients), args.tile_sums + args.range.begin / kTileElements);
    });
  }

  void run_apply(const Apply& args, const OpMemory&, Stream& stream) override {
    launch(add_tiles, {.threads = kFinishThreads, .work = {.kind = "small"}}, stream,
           static_cast<unsigned>(d_.n_tiles()), double{d_.max_norm}, d_.loss_scaling, args);
  }

 private:
  ClipNormDescription d_;
};

}  // namespace

std::unique_ptr<ClipNorm> make_clip_norm(const ClipNormDescription& d, const CudaContext&) {
  return std::make_unique<CudaClipNorm>(d);
}

}  // namespace lockstep::cuda

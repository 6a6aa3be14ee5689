// The norm in two stages: each block writes the fp64 sum of squares of its tile (segments.h), and one block adds these
// up. The order of additions depends on the segments alone: the same bits on every device.
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
    sum_squares_of_tiles(const __grid_constant__ SegmentTable table, const T* gradients, bool aligned, double* sums) {
  const Tile tile = find_tile(table);
  const double sum = block_sum<kTileThreads>(sum_of_squares(gradients, tile, aligned));
  if (threadIdx.x == 0) sums[table.first_tile + blockIdx.x] = sum;
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
  explicit CudaClipNorm(const ClipNormDescription& d)
      : max_norm_(d.max_norm), loss_scaling_(d.loss_scaling), n_tiles_(static_cast<unsigned>(count_tiles(d.segments))) {
    for (const ElementRange& range : d.ranges) {
      const std::vector<ParameterSegment> before = cut_to(d.segments, {0, range.begin});
      std::vector<ParameterSegment> segments = cut_to(d.segments, range);
      for (ParameterSegment& segment : segments) segment.begin -= range.begin;
      ranges_.push_back(make_segment_tables(segments, static_cast<std::uint32_t>(count_tiles(before))));
    }
  }

  std::string describe() const override { return "own kernels: sums of squares in fp64"; }

  void run_sum_tiles(const SumTiles& args, const OpMemory&, Stream& stream) override {
    dispatch(args.gradients.dtype, [&]<typename T>(T*) {
      const auto* const gradients = static_cast<const T*>(args.gradients.data);
      for (const SegmentTable& table : ranges_.at(args.range))
        launch(sum_squares_of_tiles<T>,
               {.blocks = table.n_tiles,
                .threads = kTileThreads,
                .work = {.kind = "packs", .bytes = moved_bytes(1, table.n_tiles, kTileElements, sizeof(T))}},
               stream, table, gradients, are_aligned(gradients), args.tile_sums);
    });
  }

  void run_apply(const Apply& args, const OpMemory&, Stream& stream) override {
    launch(add_tiles, {.threads = kFinishThreads, .work = {.kind = "small"}}, stream, n_tiles_, max_norm_,
           loss_scaling_, args);
  }

 private:
  double max_norm_;
  LossScaling loss_scaling_;
  unsigned n_tiles_;
  std::vector<std::vector<SegmentTable>> ranges_;
};

}  // namespace

std::unique_ptr<ClipNorm> make_clip_norm(const ClipNormDescription& d, const CudaContext&) {
  return std::make_unique<CudaClipNorm>(d);
}

}  // namespace lockstep::cuda

// The global norm of the gradients in fp64, with the same bits on any number of threads, the clipping coefficient, and
// whether the step is applied.
#include <algorithm>
#include <memory>
#include <span>
#include <vector>

#include "kernels/cpu/base/parallel.h"
#include "kernels/cpu/base/segment_blocks.h"
#include "kernels/cpu/base/simd.h"
#include "lockstep/ops/clip_norm.h"

#define LOCKSTEP_KERNELS "kernels/cpu/clip_norm_kernels.h"
#include "kernels/cpu/base/each_isa.h"

namespace lockstep::cpu {
namespace {

class CpuClipNorm final : public ClipNorm {
 public:
  CpuClipNorm(const ClipNormDescription& d, const CpuContext& context)
      : max_norm_(d.max_norm),
        loss_scaling_(d.loss_scaling),
        tiles_(cut_into_blocks(d.segments, kTileElements)),
        threads_(context) {
    for (const ElementRange& range : d.ranges) {
      const auto first = std::ranges::lower_bound(tiles_, range.begin, {}, &ParameterSegment::begin);
      const auto last = std::ranges::lower_bound(tiles_, range.begin + range.n_elements, {}, &ParameterSegment::begin);
      ranges_.push_back(parts_of(first - tiles_.begin(), last - tiles_.begin()));
      ranges_.back().first = range.begin;
    }
  }

  std::string describe() const override { return "own kernel: sums of squares in fp64"; }

  void run_sum_tiles(const SumTiles& args, const OpMemory&, Stream&) override {
    const Tiles& tiles = ranges_.at(args.range);
    run_ranges(tiles.n_parts, tiles.end - tiles.begin, [&](Range range) {
      for (std::int64_t i = tiles.begin + range.begin; i < tiles.begin + range.end; ++i) {
        const ParameterSegment& tile = tiles_[static_cast<std::size_t>(i)];
        with_elements(args.gradients.dtype, [&]<typename E>(E) {
          args.tile_sums[i] = LOCKSTEP_DISPATCH(sum_of_squares<E>)(args.gradients.as<E>() + (tile.begin - tiles.first),
                                                                   tile.n_elements);
        });
      }
    });
  }

  void run_apply(const Apply& args, const OpMemory&, Stream&) override {
    double total = 0;
    for (std::size_t i = 0; i < tiles_.size(); ++i) total += args.tile_sums[i];
    finish_norm(total, max_norm_, loss_scaling_, args);
  }

 private:
  /// Consecutive tiles, and the number of threads among which they are divided.
  struct Tiles {
    std::int64_t begin = 0, end = 0;
    int n_parts = 1;
    std::size_t first = 0;  // element of the range
  };

  Tiles parts_of(std::int64_t begin, std::int64_t end) const {
    const auto tiles =
        std::span(tiles_).subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(end - begin));
    return {.begin = begin,
            .end = end,
            .n_parts = part_count(threads_, static_cast<std::int64_t>(total_elements(tiles) * sizeof(float)))};
  }

  double max_norm_;
  LossScaling loss_scaling_;
  std::vector<ParameterSegment> tiles_;
  CpuContext threads_;
  std::vector<Tiles> ranges_;
};

}  // namespace

std::unique_ptr<ClipNorm> make_clip_norm(const ClipNormDescription& d, const CpuContext& context) {
  return std::make_unique<CpuClipNorm>(d, context);
}

}  // namespace lockstep::cpu

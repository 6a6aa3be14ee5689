// The global norm of the gradients in fp64, with the same bits on any number of threads, the clipping coefficient, and
// whether the step is applied.
#include <algorithm>
#include <memory>

#include "kernels/cpu/base/parallel.h"
#include "kernels/cpu/base/simd.h"
#include "lockstep/ops/clip_norm.h"

#define LOCKSTEP_KERNELS "kernels/cpu/clip_norm_kernels.h"
#include "kernels/cpu/base/each_isa.h"

namespace lockstep::cpu {
namespace {

class CpuClipNorm final : public ClipNorm {
 public:
  CpuClipNorm(const ClipNormDescription& d, const CpuContext& context) : d_(d), threads_(context) {}

  std::string describe() const override { return "own kernel: sums of squares in fp64"; }

  void run_sum_tiles(const SumTiles& args, const OpMemory&, Stream&) override {
    const std::size_t n = args.range.n_elements;
    double* const sums = args.tile_sums + args.range.begin / kTileElements;
    const int n_parts = part_count(threads_, static_cast<std::int64_t>(n * size_bytes(args.gradients.dtype)));
    run_ranges(n_parts, static_cast<std::int64_t>(n_tiles_of(n)), [&](Range tiles) {
      for (auto tile = static_cast<std::size_t>(tiles.begin); tile < static_cast<std::size_t>(tiles.end); ++tile) {
        const std::size_t begin = tile * kTileElements;
        with_elements(args.gradients.dtype, [&]<typename E>(E) {
          sums[tile] =
              LOCKSTEP_DISPATCH(sum_of_squares<E>)(args.gradients.as<E>() + begin, std::min(kTileElements, n - begin));
        });
      }
    });
  }

  void run_apply(const Apply& args, const OpMemory&, Stream&) override {
    double total = 0;
    for (std::size_t i = 0; i < d_.n_tiles(); ++i) total += args.tile_sums[i];
    finish_norm(total, d_.max_norm, d_.loss_scaling, args);
  }

 private:
  ClipNormDescription d_;
  CpuContext threads_;
};

}  // namespace

std::unique_ptr<ClipNorm> make_clip_norm(const ClipNormDescription& d, const CpuContext& context) {
  return std::make_unique<CpuClipNorm>(d, context);
}

}  // namespace lockstep::cpu

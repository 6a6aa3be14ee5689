// Random erasing (lockstep/ops/random_erase.h): a copy of each image, and zeros in its rectangle.
#include <algorithm>
#include <memory>

#include "kernels/cpu/base/bf16.h"
#include "kernels/cpu/base/parallel.h"
#include "lockstep/ops/random_erase.h"

namespace lockstep::cpu {
namespace {

template <typename E>
class CpuRandomErase final : public CpuOp<RandomEraseDescription> {
 public:
  CpuRandomErase(const RandomEraseDescription& d, const CpuContext& context)
      : PlannedOp(d, context), parts_(part_count(context, d.x.n_elements() * 2 * std::int64_t{sizeof(E)})) {}

  std::string describe() const override { return "own kernel"; }

  void run_forward(const Forward& args, const OpMemory&, Stream&) override {
    const std::int64_t row = d_.x[2] * d_.x[3], image = d_.x[1] * row;
    run_ranges(parts_, d_.x[0], [&](Range range) {
      for (std::int64_t n = range.begin; n < range.end; ++n) {
        const E* const x = static_cast<const E*>(args.x) + n * image;
        E* const y = static_cast<E*>(args.y) + n * image;
        std::copy(x, x + image, y);
        const Philox random(d_.seed, RandomPurpose::erase, args.sample_ids[n], args.scalars->epoch);
        const ErasedRectangle erased =
            draw_erased(d_.probability, static_cast<int>(d_.x[1]), static_cast<int>(d_.x[2]), random);
        for (std::int64_t h = erased.top; h < erased.top + erased.height; ++h)
          std::fill_n(y + h * row + erased.left * d_.x[3], erased.width * d_.x[3], from_float<E>(0.0f));
      }
    });
  }

 private:
  int parts_;
};

}  // namespace

std::unique_ptr<RandomErase> make_random_erase(const RandomEraseDescription& d, const CpuContext& context) {
  require_float_or_bf16(d.dtype, "random erasing");
  require(d.x.rank() == 4 && d.x.n_elements() > 0, ErrorCode::op_description,
          "random erasing needs images (N, H, W, C), not {}", d.x.text());
  return with_elements(d.dtype, [&](auto element) -> std::unique_ptr<RandomErase> {
    return std::make_unique<CpuRandomErase<decltype(element)>>(d, context);
  });
}

}  // namespace lockstep::cpu

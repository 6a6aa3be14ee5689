// Random erasing (lockstep/ops/random_erase.h): a copy of each image, and zeros in its rectangle.
#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>

#include "kernels/cpu/base/bf16.h"
#include "kernels/cpu/base/parallel.h"
#include "lockstep/ops/random_erase.h"
#include "lockstep/philox.h"

namespace lockstep::cpu {
namespace {

struct Rectangle {
  std::int64_t top = 0, left = 0, height = 0, width = 0;
};

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
        const std::optional<Rectangle> erased = draw(args.sample_ids[n], args.scalars->epoch);
        for (std::int64_t h = 0; erased && h < erased->height; ++h)
          std::fill_n(y + (erased->top + h) * row + erased->left * d_.x[3], erased->width * d_.x[3],
                      from_float<E>(0.0f));
      }
    });
  }

 private:
  std::optional<Rectangle> draw(std::uint32_t sample, std::uint32_t epoch) const {
    const Philox random(d_.seed, RandomPurpose::erase, sample, epoch);
    if (Philox::uniform(random.block(0), 0) >= d_.probability) return std::nullopt;
    const std::int64_t height = d_.x[1], width = d_.x[2];
    for (std::uint64_t t = 1; t <= erasing::kTries; ++t) {
      const auto size = random.block(2 * t - 1), place = random.block(2 * t);
      const double area =
          static_cast<double>(height * width) * (erasing::kLeastArea + erasing::kAreaRange * Philox::uniform(size, 0));
      const double ratio = std::exp(erasing::kLogLeastRatio + erasing::kLogRatioRange * Philox::uniform(size, 1));
      const auto h = static_cast<std::int64_t>(std::rint(std::sqrt(area * ratio)));
      const auto w = static_cast<std::int64_t>(std::rint(std::sqrt(area / ratio)));
      if (h >= height || w >= width) continue;
      return Rectangle{.top = Philox::below(place[0], static_cast<std::uint32_t>(height - h + 1)),
                       .left = Philox::below(place[1], static_cast<std::uint32_t>(width - w + 1)),
                       .height = h,
                       .width = w};
    }
    return std::nullopt;
  }

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

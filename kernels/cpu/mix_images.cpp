// Mixup and cutmix of a batch (lockstep/ops/mix_images.h), each image in one pass.
#include <algorithm>
#include <memory>

#include "kernels/cpu/base/bf16.h"
#include "kernels/cpu/base/parallel.h"
#include "lockstep/ops/mix_images.h"

namespace lockstep::cpu {
namespace {

template <typename E>
class CpuMixImages final : public CpuOp<MixImagesDescription> {
 public:
  CpuMixImages(const MixImagesDescription& d, const CpuContext& context)
      : PlannedOp(d, context), parts_(part_count(context, d.x.n_elements() * 3 * std::int64_t{sizeof(E)})) {}

  std::string describe() const override { return "own kernel: mixes each image with the one before it"; }

  void run_forward(const Forward& args, const OpMemory&, Stream&) override {
    const std::int64_t n_images = d_.x[0];
    const ImageMix mix = draw_mix(d_.seed, static_cast<int>(d_.x[1]), static_cast<int>(d_.x[2]), args);
    *args.weight = mix.weight;
    run_ranges(parts_, n_images, [&](Range range) {
      for (std::int64_t n = range.begin; n < range.end; ++n) {
        const std::int64_t partner = n > 0 ? n - 1 : n_images - 1;
        args.partner_labels[n] = args.labels[partner] < 0 ? args.labels[n] : args.labels[partner];
        const auto image = [&](std::int64_t number) {
          return static_cast<const E*>(args.x) + number * image_elements();
        };
        E* const y = static_cast<E*>(args.y) + n * image_elements();
        if (mix.cuts)
          cut(mix, image(n), image(partner), y);
        else
          blend(mix.weight, image(n), image(partner), y);
      }
    });
  }

 private:
  std::int64_t image_elements() const { return d_.x[1] * d_.x[2] * d_.x[3]; }

  void blend(float weight, const E* own, const E* other, E* y) const {
    const float rest = 1.0f - weight;
    for (std::int64_t i = 0; i < image_elements(); ++i)
      y[i] = from_float<E>(weight * to_float(own[i]) + rest * to_float(other[i]));
  }

  void cut(const ImageMix& mix, const E* own, const E* other, E* y) const {
    const std::int64_t channels = d_.x[3], row_elements = d_.x[2] * channels;
    std::copy(own, own + image_elements(), y);
    for (std::int64_t row = mix.top; row < mix.bottom; ++row) {
      const std::int64_t begin = row * row_elements + mix.left * channels;
      std::copy(other + begin, other + begin + (mix.right - mix.left) * channels, y + begin);
    }
  }

  int parts_;
};

}  // namespace

std::unique_ptr<MixImages> make_mix_images(const MixImagesDescription& d, const CpuContext& context) {
  require_float_or_bf16(d.dtype, "mixing images");
  require(d.x.rank() == 4 && d.x.n_elements() > 0, ErrorCode::op_description,
          "mixing images needs images (N, H, W, C), not {}", d.x.text());
  return with_elements(d.dtype, [&](auto element) -> std::unique_ptr<MixImages> {
    return std::make_unique<CpuMixImages<decltype(element)>>(d, context);
  });
}

}  // namespace lockstep::cpu

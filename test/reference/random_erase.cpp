#include "test/reference/random_erase.h"

#include <cmath>

#include "lockstep/error.h"
#include "lockstep/philox.h"
#include "test/reference/normalization.h"
#include "test/reference/ops.h"

namespace lockstep::reference {

std::optional<ErasedSize> erased_size(double u, double v, int image_height, int image_width) {
  const double area = image_height * image_width * (0.02 + (0.33 - 0.02) * u);
  const double ratio = std::exp(std::log(0.3) + (std::log(3.3) - std::log(0.3)) * v);
  const ErasedSize size{.height = static_cast<int>(std::rint(std::sqrt(area * ratio))),
                        .width = static_cast<int>(std::rint(std::sqrt(area / ratio)))};
  if (size.height < image_height && size.width < image_width) return size;
  return std::nullopt;
}

std::optional<Erased> draw_erased(const RandomEraseDescription& d, std::uint32_t sample, std::uint32_t epoch) {
  const Philox random(d.seed, RandomPurpose::erase, sample, epoch);
  if (Philox::uniform(random.block(0), 0) >= d.probability) return std::nullopt;
  const int height = static_cast<int>(d.x[1]), width = static_cast<int>(d.x[2]);
  for (std::uint64_t t = 1; t <= 10; ++t) {
    const auto sizes = random.block(2 * t - 1), places = random.block(2 * t);
    const auto size = erased_size(Philox::uniform(sizes, 0), Philox::uniform(sizes, 1), height, width);
    if (!size) continue;
    const auto place = [](std::uint32_t number, int n) {
      return static_cast<int>(Philox::below(number, static_cast<std::uint32_t>(n)));
    };
    return Erased{.top = place(places[0], height - size->height + 1),
                  .left = place(places[1], width - size->width + 1),
                  .size = *size};
  }
  return std::nullopt;
}

namespace {

class ReferenceRandomErase final : public RandomErase {
 public:
  explicit ReferenceRandomErase(const RandomEraseDescription& d) : d_(d) {
    require(d.dtype == DType::fp32, ErrorCode::not_supported, "the reference erases only in fp32");
  }
  std::string describe() const override { return "reference: all fused"; }

  void run_forward(const Forward& args, const OpMemory&, Stream&) override {
    const auto* x = static_cast<const float*>(args.x);
    auto* y = static_cast<float*>(args.y);
    for (Index n = 0; n < d_.x[0]; ++n) {
      const std::optional<Erased> erased = draw_erased(d_, args.sample_ids[n], args.scalars->epoch);
      for (Index h = 0; h < d_.x[1]; ++h)
        for (Index w = 0; w < d_.x[2]; ++w) {
          const bool inside = erased && h >= erased->top && h < erased->top + erased->size.height &&
                              w >= erased->left && w < erased->left + erased->size.width;
          for (Index c = 0; c < d_.x[3]; ++c, ++x) *y++ = inside ? 0.0f : *x;
        }
    }
  }

 private:
  RandomEraseDescription d_;
};

}  // namespace

std::unique_ptr<RandomErase> make_random_erase(const RandomEraseDescription& description, const Context&) {
  return std::make_unique<ReferenceRandomErase>(description);
}

}  // namespace lockstep::reference

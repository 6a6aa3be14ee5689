#include "test/reference/mix_images.h"

#include <algorithm>
#include <cmath>

#include "lockstep/error.h"
#include "lockstep/philox.h"
#include "test/reference/normalization.h"
#include "test/reference/ops.h"

namespace lockstep::reference {

Rectangle cutmix_rectangle(double weight, int row, int column, int height, int width) {
  const double side = 0.5 * std::sqrt(1.0 - weight);
  const int half_height = static_cast<int>(side * height), half_width = static_cast<int>(side * width);
  return {std::max(row - half_height, 0), std::min(row + half_height, height), std::max(column - half_width, 0),
          std::min(column + half_width, width)};
}

namespace {

class ReferenceMixImages final : public MixImages {
 public:
  explicit ReferenceMixImages(const MixImagesDescription& d) : d_(d) {
    require(d.dtype == DType::fp32, ErrorCode::not_supported, "the reference mixes images only in fp32");
  }
  std::string describe() const override { return "reference: all fused"; }

  void run_forward(const Forward& args, const OpMemory&, Stream&) override {
    const Index n_images = d_.x[0], height = d_.x[1], width = d_.x[2], channels = d_.x[3];
    const auto random = Philox(d_.seed, RandomPurpose::mix, args.sample_ids[0], args.scalars->epoch).block(0);
    const bool has_both = args.mixup_quantiles && args.cutmix_quantiles;
    const bool cuts = has_both ? random[0] % 2 == 1 : args.cutmix_quantiles != nullptr;
    double weight = (cuts ? args.cutmix_quantiles : args.mixup_quantiles)[Philox::below(random[1], kBetaQuantiles)];
    Rectangle cut;
    if (cuts) {
      cut = cutmix_rectangle(weight, static_cast<int>(Philox::below(random[2], static_cast<std::uint32_t>(height))),
                             static_cast<int>(Philox::below(random[3], static_cast<std::uint32_t>(width))),
                             static_cast<int>(height), static_cast<int>(width));
      weight = 1.0 - static_cast<double>((cut.bottom - cut.top) * (cut.right - cut.left)) /
                         static_cast<double>(height * width);
    }
    *args.weight = static_cast<float>(weight);
    const auto* x = static_cast<const float*>(args.x);
    auto* y = static_cast<float*>(args.y);
    for (Index n = 0; n < n_images; ++n) {
      const Index partner = (n + n_images - 1) % n_images;
      args.partner_labels[n] = args.labels[partner] < 0 ? args.labels[n] : args.labels[partner];
      for (Index h = 0; h < height; ++h)
        for (Index w = 0; w < width; ++w)
          for (Index c = 0; c < channels; ++c) {
            const auto at = [&](Index image) { return ((image * height + h) * width + w) * channels + c; };
            const double own = x[at(n)], other = x[at(partner)];
            const bool inside = h >= cut.top && h < cut.bottom && w >= cut.left && w < cut.right;
            y[at(n)] = static_cast<float>(cuts ? (inside ? other : own) : weight * own + (1.0 - weight) * other);
          }
    }
  }

 private:
  MixImagesDescription d_;
};

}  // namespace

std::unique_ptr<MixImages> make_mix_images(const MixImagesDescription& description, const Context&) {
  return std::make_unique<ReferenceMixImages>(description);
}

}  // namespace lockstep::reference

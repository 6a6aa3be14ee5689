#include "test/reference/image_input.h"

#include "lockstep/error.h"
#include "lockstep/philox.h"
#include "test/reference/normalization.h"
#include "test/reference/ops.h"

namespace lockstep::reference {

Augmentation draw_augmentation(const ImageInputDescription& d, std::uint32_t sample, std::uint32_t epoch) {
  Augmentation drawn;
  if (d.crop_padding > 0) {
    const auto random = Philox(d.seed, RandomPurpose::crop, sample, epoch).block(0);
    const auto places = static_cast<std::uint32_t>(2 * d.crop_padding + 1);
    drawn.row = static_cast<int>(Philox::below(random[0], places)) - d.crop_padding;
    drawn.column = static_cast<int>(Philox::below(random[1], places)) - d.crop_padding;
  }
  if (d.flip) drawn.flip = (Philox(d.seed, RandomPurpose::flip, sample, epoch).block(0)[0] & 1u) != 0;
  return drawn;
}

namespace {

class ReferenceImageInput final : public ImageInput {
 public:
  explicit ReferenceImageInput(const ImageInputDescription& d) : d_(d) {
    require(d.dtype == DType::fp32, ErrorCode::not_supported, "the reference image input computes only in fp32");
    require(std::ssize(d.mean) == d.x[3] && std::ssize(d.stddev) == d.x[3], ErrorCode::internal,
            "image input of {} channels needs as many means and deviations, but has {} and {}", d.x[3], d.mean.size(),
            d.stddev.size());
  }
  OpNeeds needs() const override { return {}; }
  std::string describe() const override { return "reference: all fused"; }

  void run_forward(const Forward& args, const OpMemory&, Stream&) override {
    auto* y = static_cast<float*>(args.y);
    for (Index n = 0; n < d_.x[0]; ++n) {
      const Augmentation drawn = draw_augmentation(d_, args.sample_ids[n], args.scalars->epoch);
      for (Index h = 0; h < d_.x[1]; ++h)
        for (Index w = 0; w < d_.x[2]; ++w)
          for (Index c = 0; c < d_.x[3]; ++c) *y++ = value(args.images, n, h, w, c, drawn);
    }
  }

 private:
  float value(const std::uint8_t* images, Index n, Index h, Index w, Index c, const Augmentation& drawn) const {
    const Index from_h = h + drawn.row;
    const Index from_w = (drawn.flip ? d_.x[2] - 1 - w : w) + drawn.column;
    const bool inside = from_h >= 0 && from_h < d_.x[1] && from_w >= 0 && from_w < d_.x[2];
    const double byte = inside ? images[((n * d_.x[1] + from_h) * d_.x[2] + from_w) * d_.x[3] + c] : 0;
    const auto channel = static_cast<std::size_t>(c);
    return static_cast<float>((byte / 255.0 - d_.mean[channel]) / d_.stddev[channel]);
  }

  ImageInputDescription d_;
};

}  // namespace

std::unique_ptr<ImageInput> make_image_input(const ImageInputDescription& description, const Context&) {
  return std::make_unique<ReferenceImageInput>(description);
}

}  // namespace lockstep::reference

#include "test/reference/image_input.h"

#include <algorithm>
#include <cmath>

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

/// The weights of all stored pixels in one direction for one output of the region, from the formula of
/// lockstep/image_region.h.
std::vector<double> resize_weights(const ResizedAxis& axis, Index output) {
  const double scale = static_cast<double>(axis.length) / axis.resized;
  const double centre = (static_cast<double>(axis.corner + output) + 0.5) * scale, support = std::max(1.0, scale);
  std::vector<double> weights;
  double sum = 0;
  for (int k = axis.first; k < axis.first + axis.n; ++k)
    sum += weights.emplace_back(std::max(0.0, 1 - std::abs(k + 0.5 - centre) / support));
  for (double& weight : weights) weight /= sum;
  return weights;
}

std::uint8_t to_byte(double value) {
  return static_cast<std::uint8_t>(std::clamp(std::floor(value + 0.5), 0.0, 255.0));
}

/// The region, resized along rows and then along columns: (height, width, channels).
std::vector<std::uint8_t> resize(const std::uint8_t* pixels, const ImageRegion& region, Index height, Index width,
                                 Index channels) {
  std::vector<std::uint8_t> out(static_cast<std::size_t>(height * width * channels), 0);
  if (region.n_pixels() == 0) return out;
  const Index n_rows = region.rows.n, n_columns = region.columns.n;
  std::vector<std::uint8_t> rows(static_cast<std::size_t>(n_rows * width * channels));
  for (Index w = 0; w < width; ++w) {
    const std::vector<double> weights = resize_weights(region.columns, w);
    for (Index h = 0; h < n_rows; ++h)
      for (Index c = 0; c < channels; ++c) {
        double sum = 0;
        for (Index k = 0; k < n_columns; ++k)
          sum += weights[static_cast<std::size_t>(k)] * pixels[(h * n_columns + k) * channels + c];
        rows[static_cast<std::size_t>((h * width + w) * channels + c)] = to_byte(sum);
      }
  }
  for (Index h = 0; h < height; ++h) {
    const std::vector<double> weights = resize_weights(region.rows, h);
    for (Index i = 0; i < width * channels; ++i) {
      double sum = 0;
      for (Index k = 0; k < n_rows; ++k)
        sum += weights[static_cast<std::size_t>(k)] * rows[static_cast<std::size_t>(k * width * channels + i)];
      out[static_cast<std::size_t>(h * width * channels + i)] = to_byte(sum);
    }
  }
  return out;
}

class ReferenceImageInput final : public ImageInput {
 public:
  explicit ReferenceImageInput(const ImageInputDescription& d) : d_(d) {
    require(d.dtype == DType::fp32, ErrorCode::not_supported, "the reference image input computes only in fp32");
    require(std::ssize(d.mean) == d.x[3] && std::ssize(d.stddev) == d.x[3], ErrorCode::internal,
            "image input of {} channels needs as many means and deviations, but has {} and {}", d.x[3], d.mean.size(),
            d.stddev.size());
  }
  std::string describe() const override { return "reference: all fused"; }

  void run_forward(const Forward& args, const OpMemory&, Stream&) override {
    auto* y = static_cast<float*>(args.y);
    for (Index n = 0; n < d_.x[0]; ++n) {
      const Augmentation drawn = draw_augmentation(d_, args.sample_ids[n], args.scalars->epoch);
      const std::uint8_t* image = args.images + n * d_.x[1] * d_.x[2] * d_.x[3];
      std::vector<std::uint8_t> resized;
      if (d_.regions.exist()) {
        image = args.images + Index{args.places[n]} * d_.regions.place_bytes;
        resized = resize(image, args.regions[n], d_.x[1], d_.x[2], d_.x[3]);
        image = resized.data();
      }
      for (Index h = 0; h < d_.x[1]; ++h)
        for (Index w = 0; w < d_.x[2]; ++w)
          for (Index c = 0; c < d_.x[3]; ++c) *y++ = value(image, h, w, c, drawn);
    }
  }

 private:
  float value(const std::uint8_t* image, Index h, Index w, Index c, const Augmentation& drawn) const {
    const Index from_h = h + drawn.row;
    const Index from_w = (drawn.flip ? d_.x[2] - 1 - w : w) + drawn.column;
    const bool inside = from_h >= 0 && from_h < d_.x[1] && from_w >= 0 && from_w < d_.x[2];
    const double byte = inside ? image[(from_h * d_.x[2] + from_w) * d_.x[3] + c] : 0;
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

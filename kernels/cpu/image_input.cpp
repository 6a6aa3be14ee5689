// uint8 images to normalised fp32, cropped and flipped by counter-based draws (lockstep/ops/image_input.h).
// Each value is looked up in a table of 256 per channel, (v / 255 - mean) / stddev computed in fp64 and rounded once.
#include <algorithm>
#include <memory>
#include <vector>

#include "kernels/cpu/base/bf16.h"
#include "kernels/cpu/base/context.h"
#include "kernels/cpu/base/parallel.h"
#include "lockstep/error.h"
#include "lockstep/ops/image_input.h"
#include "lockstep/philox.h"

namespace lockstep::cpu {
namespace {

/// The position of an output image in its padded source.
struct Placement {
  std::int64_t row = 0, column = 0;  // of the output's corner in the source; may be negative
  bool flipped = false;              // left and right, after the crop
};

template <typename E>
class CpuImageInput final : public ImageInput {
 public:
  CpuImageInput(const ImageInputDescription& d, const CpuContext& context)
      : description_(d),
        table_(static_cast<std::size_t>(d.x[3] * 256)),
        parts_(part_count(context, d.x.n_elements() * std::int64_t{sizeof(E)})) {
    const std::size_t channels = static_cast<std::size_t>(d.x[3]);
    for (std::size_t value = 0; value < 256; ++value)
      for (std::size_t c = 0; c < channels; ++c)
        table_[value * channels + c] = from_float<E>(
            static_cast<float>((static_cast<double>(value) / 255.0 - double{d.mean[c]}) / double{d.stddev[c]}));
  }

  OpNeeds needs() const override { return {}; }

  std::string describe() const override {
    std::string text = "own kernel: normalisation by table";
    if (description_.crop_padding > 0) text += ", crop";
    if (description_.flip) text += ", flip";
    return text;
  }

  void run_forward(const Forward& args, const OpMemory&, Stream&) override {
    const std::int64_t image = description_.x[1] * description_.x[2] * description_.x[3];
    run_parts(parts_, [&](int part) {
      const Range range = part_of(description_.x[0], part, parts_);
      for (std::int64_t n = range.begin; n < range.end; ++n)
        copy_image(args.images + n * image, draw(args.sample_ids, n, args.scalars),
                   static_cast<E*>(args.y) + n * image);
    });
  }

 private:
  Placement draw(const std::uint32_t* sample_ids, std::int64_t n, const StepScalars* scalars) const {
    Placement placement;
    const int padding = description_.crop_padding;
    if (padding > 0) {
      const auto block = Philox(description_.seed, RandomPurpose::crop, sample_ids[n], scalars->epoch).block(0);
      const std::uint32_t n_places = 2 * static_cast<std::uint32_t>(padding) + 1;
      placement.row = std::int64_t{Philox::below(block[0], n_places)} - padding;
      placement.column = std::int64_t{Philox::below(block[1], n_places)} - padding;
    }
    if (description_.flip) {
      const auto block = Philox(description_.seed, RandomPurpose::flip, sample_ids[n], scalars->epoch).block(0);
      placement.flipped = (block[0] & 1u) != 0;
    }
    return placement;
  }

  /// One pixel; bytes outside of the source are zero.
  void put(const std::uint8_t* pixel, E* out) const {
    const std::int64_t channels = description_.x[3];
    for (std::int64_t c = 0; c < channels; ++c)
      out[c] = table_[static_cast<std::size_t>((pixel ? std::int64_t{pixel[c]} : 0) * channels + c)];
  }

  void copy_image(const std::uint8_t* source, const Placement& placement, E* out) const {
    const std::int64_t height = description_.x[1], width = description_.x[2], channels = description_.x[3];
    for (std::int64_t h = 0; h < height; ++h) {
      const std::int64_t source_h = h + placement.row;
      const bool inside = source_h >= 0 && source_h < height;
      for (std::int64_t w = 0; w < width; ++w, out += channels) {
        const std::int64_t source_w = (placement.flipped ? width - 1 - w : w) + placement.column;
        const bool real = inside && source_w >= 0 && source_w < width;
        put(real ? source + (source_h * width + source_w) * channels : nullptr, out);
      }
    }
  }

  ImageInputDescription description_;
  std::vector<E> table_;  // (256, C)
  int parts_;
};

}  // namespace

std::unique_ptr<ImageInput> make_image_input(const ImageInputDescription& d, const CpuContext& context) {
  require_float_or_bf16(d.dtype, "image input");
  require(d.x.rank() == 4 && d.x.n_elements() > 0, ErrorCode::internal, "image input needs images (N, H, W, C), not {}",
          d.x.text());
  const std::size_t channels = static_cast<std::size_t>(d.x[3]);
  require(d.mean.size() == channels && d.stddev.size() == channels, ErrorCode::internal,
          "image input needs {} means and standard deviations, one per channel, but has {} and {}", channels,
          d.mean.size(), d.stddev.size());
  require(std::all_of(d.stddev.begin(), d.stddev.end(), [](float s) { return s > 0; }), ErrorCode::not_supported,
          "image input divides by the standard deviation of each channel, which must be greater than 0");
  require(d.crop_padding >= 0, ErrorCode::internal,
          "the crop padding of the image input must not be negative, but is {}", d.crop_padding);
  return with_elements(d.dtype, [&](auto element) -> std::unique_ptr<ImageInput> {
    return std::make_unique<CpuImageInput<decltype(element)>>(d, context);
  });
}

}  // namespace lockstep::cpu

// Converts uint8 images to the network's input: random crop from an image padded with zero bytes, horizontal flip, and
// (x / 255 - mean) / stddev. Padded pixels are (0 - mean) / stddev, as in torchvision's ToTensor and Normalize applied
// to padded bytes of value 0. Each draw is Philox(seed, crop or flip, sample, epoch): block 0 gives the row (number 0)
// and the column (number 1) in [0, 2*padding], and the flip (lowest bit).
// The images either have the size of the output, or each is a region of a stored image, which is resized to that size
// first (lockstep/image_region.h). The resized bytes are the same on every backend.
#pragma once

#include <algorithm>
#include <vector>

#include "lockstep/dtype.h"
#include "lockstep/error.h"
#include "lockstep/image_region.h"
#include "lockstep/op.h"
#include "lockstep/ops/step_scalars.h"
#include "lockstep/philox.h"
#include "lockstep/shape.h"

namespace lockstep {

/// Limits of images that are regions of different sizes.
struct RegionLimits {
  int max_height = 0, max_width = 0;  // of a region, in pixels; 0: the images have the size of the output
  int place_bytes = 1;                // the unit of Forward::places, in bytes

  bool exist() const { return max_height > 0; }
};

struct ImageInputDescription {
  using Op = class ImageInput;
  static constexpr std::string_view kName = "image_input";

  Shape x;  // (N, H, W, C): input in uint8 (regions have other heights and widths), output in dtype
  DType dtype = DType::fp32;
  std::vector<float> mean{};    // (C), of values in [0, 1]
  std::vector<float> stddev{};  // (C)
  int crop_padding = 0;         // 0: no crop
  bool flip = false;
  std::uint32_t seed = 0;
  RegionLimits regions{};  // C is then 1 or 3
};

inline void require_possible(const ImageInputDescription& d) {
  require(d.x.rank() == 4 && d.x.n_elements() > 0, ErrorCode::op_description,
          "image input needs images (N, H, W, C), not {}", d.x.text());
  const std::size_t channels = static_cast<std::size_t>(d.x[3]);
  require(d.mean.size() == channels && d.stddev.size() == channels, ErrorCode::op_description,
          "image input needs {} means and standard deviations, one per channel, but has {} and {}", channels,
          d.mean.size(), d.stddev.size());
  require(std::all_of(d.stddev.begin(), d.stddev.end(), [](float s) { return s > 0; }), ErrorCode::not_supported,
          "image input divides by the standard deviation of each channel, which must be greater than 0");
  require(d.crop_padding >= 0, ErrorCode::op_description,
          "the crop padding of the image input must not be negative, but is {}", d.crop_padding);
  require(!d.regions.exist() || d.x[3] == 1 || d.x[3] == 3, ErrorCode::not_supported,
          "image input resizes images of 1 or 3 channels, not {}", d.x[3]);
}

/// The position of an output image in its padded source.
struct ImagePlacement {
  int row = 0, column = 0;  // of the output's corner in the source image; may be negative
  bool flipped = false;     // horizontally, after the crop
};
constexpr ImagePlacement draw_placement(int crop_padding, bool flip, std::uint32_t seed, std::uint32_t sample,
                                        std::uint32_t epoch) {
  ImagePlacement placement;
  if (crop_padding > 0) {
    const auto block = Philox(seed, RandomPurpose::crop, sample, epoch).block(0);
    const std::uint32_t n_places = 2 * static_cast<std::uint32_t>(crop_padding) + 1;
    placement.row = static_cast<int>(Philox::below(block[0], n_places)) - crop_padding;
    placement.column = static_cast<int>(Philox::below(block[1], n_places)) - crop_padding;
  }
  if (flip) placement.flipped = (Philox(seed, RandomPurpose::flip, sample, epoch).block(0)[0] & 1u) != 0;
  return placement;
}

struct ImageInputCalls {
  struct Forward {
    const std::uint8_t* images = nullptr;       // (N, H, W, C), or the pixels of the regions, row-major
    const ImageRegion* regions = nullptr;       // (N), if there are regions
    const std::int32_t* places = nullptr;       // (N), where the pixels of each region begin, in units of place_bytes
    const std::uint32_t* sample_ids = nullptr;  // (N), position in the file
    const StepScalars* scalars = nullptr;       // epoch
    void* y = nullptr;                          // (N, H, W, C)
  };
};

class ImageInput : public ForwardOp<ImageInputDescription, ImageInputCalls> {};

}  // namespace lockstep

// Converts uint8 images to the network's input: random crop from an image padded with zero bytes, horizontal flip, and
// (x / 255 - mean) / stddev. Padded pixels are (0 - mean) / stddev, as in torchvision's ToTensor and Normalize applied
// to padded bytes of value 0. Each draw is Philox(seed, crop or flip, sample, epoch): block 0 gives the row (number 0)
// and the column (number 1) in [0, 2*padding], and the flip (lowest bit).
// The images either have the size of the output, or each is a region of a stored image, which is resized to that size
// first (lockstep/image_region.h). The resized bytes are the same on every backend.
// Planning throws op_description for impossible shapes and if mean and stddev do not have one value per channel, and
// not_supported for a stddev of 0 and for types and numbers of channels that the backend does not support.
#pragma once

#include <vector>

#include "lockstep/dtype.h"
#include "lockstep/image_region.h"
#include "lockstep/op.h"
#include "lockstep/ops/step_scalars.h"
#include "lockstep/shape.h"

namespace lockstep {

class ImageInput;

/// Limits of images that are regions of different sizes.
struct RegionLimits {
  int max_height = 0, max_width = 0;  // of a region, in pixels; 0: the images have the size of the output
  int place_bytes = 1;                // the unit of Forward::places, in bytes

  bool exist() const { return max_height > 0; }
};

struct ImageInputDescription {
  using Op = ImageInput;
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

class ImageInput : public Op {
 public:
  struct Forward {
    const std::uint8_t* images = nullptr;       // (N, H, W, C), or the pixels of the regions, row-major
    const ImageRegion* regions = nullptr;       // (N), if there are regions
    const std::int32_t* places = nullptr;       // (N), where the pixels of each region begin, in units of place_bytes
    const std::uint32_t* sample_ids = nullptr;  // (N), position in the file
    const StepScalars* scalars = nullptr;       // epoch
    void* y = nullptr;                          // (N, H, W, C)
  };
  void forward(const Forward& args, const OpMemory& memory, Stream& stream) {
    submit("image_input.forward", &ImageInput::run_forward, args, memory, stream);
  }

 private:
  virtual void run_forward(const Forward& args, const OpMemory& memory, Stream& stream) = 0;
};

}  // namespace lockstep

// The region of a stored image of 8-bit pixels that a sample needs: what is read from the file, transferred, and
// resized by the op image_input. It is a function of the sample and the epoch, like the box of image_shape.h that it
// covers.
#pragma once

#include "data/image_shape.h"
#include "lockstep/image_region.h"

namespace lockstep::data {

struct StoredRegion {
  ImageRegion region;
  int top = 0, left = 0;  // of its first pixel in the stored image
};

/// shaping.image_size is not 0. `height` and `width`: of the stored image.
StoredRegion region_of(const ImageShaping& shaping, int height, int width, std::uint32_t sample_id,
                       std::uint32_t epoch);

/// Upper bounds of the regions of images.
struct RegionBounds {
  int height = 0, width = 0;
  std::int64_t pixels = 0;
  std::int64_t pixels_of_rows = 0;  // of the whole rows of the image

  /// Adds an image of this size, whose region may differ from epoch to epoch.
  void add(const ImageShaping& shaping, int image_height, int image_width);
};

}  // namespace lockstep::data

// How images of any size become the input of a network: a part of the image is resized to a square. The part is a
// function of the sample and the epoch, so it depends on neither ranks nor threads nor history.
//   in training with resized_crop: a random part (Szegedy et al., "Going deeper with convolutions", 2015), drawn as
//     torchvision's RandomResizedCrop does: area uniform in 0.08 to 1 of the image's, log of width / height uniform in
//     log(3/4) to log(4/3), 10 tries, then the largest centred part whose ratio is allowed
//   otherwise: the shorter side becomes `resize`, by default image_size * 256 / 224, then the centre is taken, as
//     torchvision's reference scripts do for evaluation
#pragma once

#include <cstdint>

#include "data/resize.h"
#include "lockstep/image_region.h"

namespace lockstep::data {

struct ImageShaping {
  int image_size = 0;         // height and width of the output, pixels; 0: as stored
  bool resized_crop = false;  // training; else the centre
  std::uint32_t seed = 0;     // of resized_crop
  int resize = 0;             // the centre: length of the shorter side before the crop, pixels; 0: the default
};

/// Its corners are whole pixels.
Box random_box(int height, int width, std::uint32_t seed, std::uint32_t sample_id, std::uint32_t epoch);
/// Length of the shorter side before the centre is taken, pixels.
inline int default_resize(int image_size) { return image_size * 256 / 224; }
/// The given length, or the default if that is 0.
inline int resized_side(int image_size, int resize) { return resize > 0 ? resize : default_resize(image_size); }
/// The centre in one direction, as torchvision's resize and centre crop take it: `length` pixels are resized to
/// `resized` pixels, and image_size of these are used, from `corner` on.
struct CentreCrop {
  std::int64_t resized = 0;
  int corner = 0;
};
CentreCrop centre_crop(int length, int shorter_length, int image_size, int resize);
/// The same as a part of the image. Its corners are whole pixels only if the sizes divide evenly.
Box centre_box(int height, int width, int image_size, int resize = 0);

/// Whether images that already have the size stay as they are: by default, also if the default is given as a number.
inline bool keeps_size(const ImageShaping& shaping) {
  return !shaping.resized_crop && (shaping.resize == 0 || shaping.resize == shaping.image_size ||
                                   shaping.resize == default_resize(shaping.image_size));
}

/// The region of a stored image of 8-bit pixels that a sample needs: what is read from the file, transferred, and
/// resized by the op image_input. It is a function of the sample and the epoch, like the box that it covers.
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

// Converts the bytes of an image file to the input of a network: decodes the image, takes the part that ImageShaping
// asks for, and resizes it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "data/image_decoder.h"
#include "data/image_shape.h"
#include "data/resize.h"

namespace lockstep::data {

/// The part of a sample's image that is used in this epoch.
Box box_of(const ImageShaping& shaping, int height, int width, std::uint32_t sample_id, std::uint32_t epoch);

/// The pixels of an image of this size that resize_box() reads.
PixelArea area_of_box(const Box& box, bool cut, int height, int width, int size);
/// Resizes the box to `size` x `size`. A random crop is cut out first (`cut`), so that pixels outside of it have no
/// influence. image.height and image.width are those of the whole image; `area` is the part that image.bytes contains.
void resize_box(Resizer& resizer, PixelView image, PixelArea area, Box box, bool cut, int size,
                std::span<std::uint8_t> out);

/// To be used after open().
class ShapedDecoder : public ImageDecoder {
 public:
  /// height() x width() x channels bytes.
  bool read_as_stored(int channels, std::span<std::uint8_t> image);
  /// shaping.image_size x shaping.image_size x channels bytes. Only the needed part of a JPEG image is decoded, and at
  /// a smaller size if the image is much larger. Damage below a random crop is not noticed, but the import has checked
  /// the images. Damage below the centre crop is noticed.
  bool read_shaped(const ImageShaping& shaping, std::uint32_t sample_id, std::uint32_t epoch, int channels,
                   std::span<std::uint8_t> image);

 private:
  Resizer resizer_;
  std::vector<std::uint8_t> pixels_;
};

}  // namespace lockstep::data

#include "data/shaped_decoder.h"

#include <algorithm>
#include <cmath>

namespace lockstep::data {

Box box_of(const ImageShaping& shaping, int height, int width, std::uint32_t sample_id, std::uint32_t epoch) {
  return shaping.resized_crop ? random_box(height, width, shaping.seed, sample_id, epoch)
                              : centre_box(height, width, shaping.image_size, shaping.resize);
}

PixelArea area_of_box(const Box& box, bool cut, int height, int width, int size) {
  if (!cut) return area_read(box, height, width, size, size);
  const int left = static_cast<int>(box.left), top = static_cast<int>(box.top);
  return {.left = left,
          .top = top,
          .width = static_cast<int>(std::ceil(box.right)) - left,
          .height = static_cast<int>(std::ceil(box.bottom)) - top};
}

void resize_box(Resizer& resizer, PixelView image, PixelArea area, Box box, bool cut, int size,
                std::span<std::uint8_t> out) {
  if (cut) {
    const PixelArea part = area_of_box(box, cut, image.height, image.width, size);
    image.bytes += (part.top - area.top) * image.row_bytes + std::ptrdiff_t{part.left - area.left} * image.channels;
    image.width = part.width;
    image.height = part.height;
    area = {.width = part.width, .height = part.height};
    box = {box.left - part.left, box.top - part.top, box.right - part.left, box.bottom - part.top};
  }
  resizer.resize_area(image, area, box, size, size, out);
}

bool ShapedDecoder::read_as_stored(int channels, std::span<std::uint8_t> image) {
  return start(8, channels) && read_pixels(image);
}

bool ShapedDecoder::read_shaped(const ImageShaping& shaping, std::uint32_t sample_id, std::uint32_t epoch, int channels,
                                std::span<std::uint8_t> image) {
  const Box box = box_of(shaping, height(), width(), sample_id, epoch);
  // libjpeg-turbo has vector instructions for inverse transforms to 1, 2, 4 and 8 eighths. Resizing must still at
  // least halve the size, since the transforms drop details more sharply than antialiasing does.
  const double side = std::min(box.right - box.left, box.bottom - box.top);
  int eighths = 1;
  while (eighths < 8 && side * eighths < 2 * 8.0 * shaping.image_size) eighths *= 2;
  if (!start(eighths, channels)) return false;
  const int height = decoded_height(), width = decoded_width();
  const double scale = decoded_eighths() / 8.0;
  const Box scaled{box.left * scale, box.top * scale, box.right * scale, box.bottom * scale};
  const bool cut = shaping.resized_crop;
  if (!crop(area_of_box(scaled, cut, height, width, shaping.image_size), cut ? RowsBelow::ignored : RowsBelow::parsed))
    return false;
  const PixelArea area = decoded_area();
  const std::size_t n_bytes = static_cast<std::size_t>(channels) * static_cast<std::size_t>(area.height) * area.width;
  if (pixels_.size() < n_bytes) pixels_.resize(n_bytes);
  if (!read_pixels(std::span(pixels_).first(n_bytes))) return false;
  resize_box(resizer_, {pixels_.data(), height, width, channels, std::ptrdiff_t{channels} * area.width}, area, scaled,
             cut, shaping.image_size, image);
  return true;
}

}  // namespace lockstep::data

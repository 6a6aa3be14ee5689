// Bilinear resizing with antialiasing, as Pillow's resize(BILINEAR) and torchvision's resize(antialias=True) do it:
//   out[i] = sum_k w(i, k) in[k] / sum_k w(i, k),  w = max(0, 1 - |k + 0.5 - centre_i| / max(1, scale)),
//   centre_i = left + (i + 0.5) scale,  scale = width of the box / width of the output
// in each direction, first along rows, then along columns, rounded to 8 bits after each. The arithmetic is Pillow's
// (weights as 22-bit fixed point), and so are the bytes where the box has whole corners. The loops over pixels are in
// lockstep/resize_rows.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "lockstep/resize_rows.h"

namespace lockstep::data {

/// A part of an image in whole pixels: columns [left, left + width), rows [top, top + height).
struct PixelArea {
  int left = 0, top = 0, width = 0, height = 0;

  bool contains(const PixelArea& other) const {
    return left <= other.left && top <= other.top && other.left + other.width <= left + width &&
           other.top + other.height <= top + height;
  }
  bool operator==(const PixelArea&) const = default;
};

/// 8-bit pixels (height, width, channels), possibly a part of a larger image.
struct PixelView {
  const std::uint8_t* bytes = nullptr;
  int height = 0, width = 0, channels = 0;
  std::ptrdiff_t row_bytes = 0;  // from one row to the next
};

/// A part of an image in pixels, corners anywhere: [left, right) x [top, bottom).
struct Box {
  double left = 0, top = 0, right = 0, bottom = 0;
};

/// The pixels that Resizer::resize() reads, of an image of this size.
PixelArea area_read(const Box& box, int image_height, int image_width, int height, int width);

/// To be used by one thread. Its memory is reused for the next image.
class Resizer {
 public:
  /// Writes the part `box` of `image` as (height, width, channels) to `out`. Pixels outside the box contribute to
  /// outputs at its edge, as if the whole image was resized and then cropped.
  void resize(const PixelView& image, const Box& box, int height, int width, std::span<std::uint8_t> out);
  /// Gives the same bytes when only the pixels of `area` are available, which must contain area_read(): they begin at
  /// image.bytes, while image.height and image.width are those of the whole image.
  void resize_area(const PixelView& image, const PixelArea& area, const Box& box, int height, int width,
                   std::span<std::uint8_t> out);

 private:
  void make_weights(ResizeWeights& weights, double begin, double end, int n_inputs, int n_outputs);

  ResizeWeights along_rows_, along_columns_;
  std::vector<double> taps_;        // of one output
  std::vector<std::uint8_t> rows_;  // resized along rows: (rows used), of resized_row_bytes()
};

}  // namespace lockstep::data

// Bilinear resizing with antialiasing, as Pillow's resize(BILINEAR) and torchvision's resize(antialias=True) do it:
//   out[i] = sum_k w(i, k) in[k] / sum_k w(i, k),  w = max(0, 1 - |k + 0.5 - centre_i| / max(1, scale)),
//   centre_i = left + (i + 0.5) scale,  scale = width of the box / width of the output
// in each direction, first along rows, then along columns, rounded to 8 bits after each. The arithmetic is Pillow's
// (weights as 22-bit fixed point), and so are the bytes where the box has whole corners.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace lockstep::data {

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

/// To be used by one thread. Its memory is reused for the next image.
class Resizer {
 public:
  /// Writes the part `box` of `image` as (height, width, channels) to `out`. Pixels outside the box contribute to
  /// outputs at its edge, as if the whole image was resized and then cropped.
  void resize(const PixelView& image, const Box& box, int height, int width, std::span<std::uint8_t> out);

 private:
  /// For each output index the first input index, how many, and their weights.
  struct Weights {
    int max_taps = 0;  // inputs of an output
    std::vector<int> first, count;
    std::vector<std::int32_t> weights;  // (outputs, max_taps)
    std::vector<double> scratch;
    void make(double begin, double end, int n_inputs, int n_outputs);
  };
  Weights along_rows_, along_columns_;
  std::vector<std::uint8_t> rows_;  // resized along rows: (rows used, width, channels)
  std::vector<std::int32_t> sums_;  // of one output row
};

}  // namespace lockstep::data

#include "data/resize.h"

#include <algorithm>
#include <cmath>

#include "lockstep/error.h"

namespace lockstep::data {
namespace {

/// The input pixels of one output, [begin, end).
struct Taps {
  double centre = 0, support = 0;
  int begin = 0, end = 0;

  Taps(double box_begin, double box_end, int n_inputs, int n_outputs, int output) {
    const double scale = (box_end - box_begin) / n_outputs;
    support = std::max(1.0, scale);
    centre = box_begin + (output + 0.5) * scale;
    begin = std::clamp(static_cast<int>(std::floor(centre - support + 0.5)), 0, n_inputs - 1);
    end = std::clamp(static_cast<int>(std::floor(centre + support + 0.5)), begin + 1, n_inputs);
  }
};

}  // namespace

PixelArea area_read(const Box& box, int image_height, int image_width, int height, int width) {
  const auto columns = [&](int output) { return Taps(box.left, box.right, image_width, width, output); };
  const auto rows = [&](int output) { return Taps(box.top, box.bottom, image_height, height, output); };
  const int left = columns(0).begin, top = rows(0).begin;
  return {.left = left, .top = top, .width = columns(width - 1).end - left, .height = rows(height - 1).end - top};
}

void Resizer::make_weights(ResizeWeights& w, double begin, double end, int n_inputs, int n_outputs) {
  w.max_taps = static_cast<int>(std::ceil(std::max(1.0, (end - begin) / n_outputs))) * 2 + 1;
  w.first.resize(static_cast<std::size_t>(n_outputs));
  w.count.resize(static_cast<std::size_t>(n_outputs));
  w.weights.resize(static_cast<std::size_t>(n_outputs) * static_cast<std::size_t>(w.max_taps));
  taps_.resize(static_cast<std::size_t>(w.max_taps));
  for (int i = 0; i < n_outputs; ++i) {
    const Taps taps(begin, end, n_inputs, n_outputs, i);
    const int n = std::min(taps.end - taps.begin, w.max_taps);
    double sum = 0;
    for (int k = 0; k < n; ++k)
      sum += taps_[static_cast<std::size_t>(k)] =
          std::max(0.0, 1.0 - std::abs((taps.begin + k + 0.5 - taps.centre) / taps.support));
    w.first[static_cast<std::size_t>(i)] = taps.begin;
    w.count[static_cast<std::size_t>(i)] = n;
    std::int32_t* row = w.weights.data() + static_cast<std::ptrdiff_t>(i) * w.max_taps;
    for (int k = 0; k < n; ++k)
      row[k] = static_cast<std::int32_t>(taps_[static_cast<std::size_t>(k)] / sum * (1 << kResizeFractionBits) + 0.5);
  }
}

void Resizer::resize(const PixelView& image, const Box& box, int height, int width, std::span<std::uint8_t> out) {
  resize_area(image, {.width = image.width, .height = image.height}, box, height, width, out);
}

void Resizer::resize_area(const PixelView& image, const PixelArea& area, const Box& box, int height, int width,
                          std::span<std::uint8_t> out) {
  const int channels = image.channels;
  require(height > 0 && width > 0 && box.left >= 0 && box.top >= 0 && box.left < box.right && box.top < box.bottom &&
              box.right <= image.width && box.bottom <= image.height && (channels == 1 || channels == 3) &&
              out.size() == static_cast<std::size_t>(height) * width * channels,
          ErrorCode::internal, "a box of [{}, {}) x [{}, {}) of {} x {} x {} cannot be resized to {} x {}", box.top,
          box.bottom, box.left, box.right, image.height, image.width, channels, height, width);
  const PixelArea used = area_read(box, image.height, image.width, height, width);
  require(area.contains(used), ErrorCode::internal, "{} x {} pixels from ({}, {}) on are missing", used.height,
          used.width, used.top, used.left);
  make_weights(along_rows_, box.left, box.right, image.width, width);
  make_weights(along_columns_, box.top, box.bottom, image.height, height);
  for (int& first : along_rows_.first) first -= area.left;
  along_rows_.split();

  const std::size_t row_bytes = static_cast<std::size_t>(width) * channels;
  const std::size_t rows_row_bytes = resized_row_bytes(width, channels);
  rows_.resize(std::max(rows_.size(), static_cast<std::size_t>(used.height) * rows_row_bytes));
  resize_along_rows({.bytes = image.bytes + (std::ptrdiff_t{used.top} - area.top) * image.row_bytes,
                     .row_bytes = image.row_bytes,
                     .n_rows = used.height,
                     .width = area.width,
                     .channels = channels},
                    along_rows_, rows_.data());
  for (int y = 0; y < height; ++y) {
    const auto at = static_cast<std::size_t>(y);
    resize_along_columns(rows_.data() + static_cast<std::size_t>(along_columns_.first[at] - used.top) * rows_row_bytes,
                         static_cast<std::ptrdiff_t>(rows_row_bytes),
                         along_columns_.weights.data() + static_cast<std::ptrdiff_t>(y) * along_columns_.max_taps,
                         along_columns_.count[at], static_cast<int>(row_bytes), out.data() + at * row_bytes);
  }
}

}  // namespace lockstep::data

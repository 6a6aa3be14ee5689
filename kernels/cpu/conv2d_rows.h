// Rows of a matrix from the pixels of nhwc images and back ("im2col"): a row holds the channels of the pixels that the
// window covers at one position, with zeros outside of the image. Pixels are copied as bytes, so their elements can
// have any type.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <vector>

#include "kernels/cpu/base/parallel.h"

namespace lockstep::cpu {

struct Image {
  std::int64_t height = 0, width = 0, channels = 0;
};

/// The pixels of an image at positions (h, w): (row + h * stride, column + w * stride).
struct Plane {
  std::int64_t row = 0, column = 0, stride = 1;
  std::int64_t height = 0, width = 0;  // in positions
};

/// Walks the positions of all images, in order.
struct Cursor {
  std::int64_t n, h, w;
  Cursor(const Plane& plane, std::int64_t position)
      : n(position / (plane.height * plane.width)),
        h(position / plane.width % plane.height),
        w(position % plane.width) {}
  void advance(const Plane& plane) {
    if (++w < plane.width) return;
    w = 0;
    if (++h < plane.height) return;
    h = 0;
    ++n;
  }
};

/// `count` neighbouring pixels; the first at this distance from the position's pixel.
struct Run {
  std::int64_t row = 0, column = 0, count = 1;
};

inline void add_tap(std::vector<Run>& runs, std::int64_t row, std::int64_t column) {
  if (!runs.empty() && runs.back().row == row && runs.back().column + runs.back().count == column)
    ++runs.back().count;
  else
    runs.push_back({row, column});
}

/// A matrix with a row for each position: the channels of its runs' pixels, zeros outside of the image.
struct Gather {
  Image from;
  Plane positions;        // of the matrix's rows
  std::int64_t step = 1;  // pixels of `from` from one position to the next
  std::vector<Run> runs{};

  std::int64_t columns() const {
    std::int64_t n_taps = 0;
    for (const Run& run : runs) n_taps += run.count;
    return n_taps * from.channels;
  }
  /// Whether the tensor itself is this matrix.
  bool in_place() const {
    return step == 1 && columns() == from.channels && runs[0].row == 0 && runs[0].column == 0 &&
           positions.height == from.height && positions.width == from.width;
  }
};

/// Rows [range) to `to`; `pixel_bytes`: of all channels.
inline void gather_rows(const Gather& gather, const std::byte* images, std::int64_t pixel_bytes, Range range,
                        std::byte* to) {
  const auto [height, width, channels] = gather.from;
  const auto zeros = [&](std::int64_t pixels) {
    std::memset(to, 0, static_cast<std::size_t>(pixels * pixel_bytes));
    to += pixels * pixel_bytes;
  };
  Cursor at(gather.positions, range.begin);
  for (std::int64_t i = range.begin; i < range.end; ++i, at.advance(gather.positions))
    for (const Run& run : gather.runs) {
      const std::int64_t row = at.h * gather.step + run.row, column = at.w * gather.step + run.column;
      const std::int64_t begin = std::clamp<std::int64_t>(-column, 0, run.count);
      const std::int64_t end = std::clamp(width - column, begin, run.count);
      if (row < 0 || row >= height || begin == end) {
        zeros(run.count);
        continue;
      }
      if (begin > 0) zeros(begin);
      const std::int64_t size_bytes = (end - begin) * pixel_bytes;
      std::memcpy(to, images + ((at.n * height + row) * width + column + begin) * pixel_bytes,
                  static_cast<std::size_t>(size_bytes));
      to += size_bytes;
      if (end < run.count) zeros(run.count - end);
    }
}

/// Scatters rows [range) from `from` to the pixels of a plane; null: zeros.
inline void scatter_rows(const Plane& plane, const std::byte* from, std::int64_t pixel_bytes, Range range,
                         const Image& image, std::byte* images) {
  const auto size_bytes = static_cast<std::size_t>(pixel_bytes);
  Cursor at(plane, range.begin);
  for (std::int64_t i = range.begin; i < range.end; ++i, at.advance(plane)) {
    const std::int64_t row = plane.row + at.h * plane.stride, column = plane.column + at.w * plane.stride;
    std::byte* const to = images + ((at.n * image.height + row) * image.width + column) * pixel_bytes;
    if (from)
      std::memcpy(to, from + (i - range.begin) * pixel_bytes, size_bytes);
    else
      std::memset(to, 0, size_bytes);
  }
}

}  // namespace lockstep::cpu

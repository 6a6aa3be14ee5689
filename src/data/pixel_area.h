// A part of an image in whole pixels.
#pragma once

namespace lockstep::data {

/// Columns [left, left + width), rows [top, top + height).
struct PixelArea {
  int left = 0, top = 0, width = 0, height = 0;

  bool contains(const PixelArea& other) const {
    return left <= other.left && top <= other.top && other.left + other.width <= left + width &&
           other.top + other.height <= top + height;
  }
  bool operator==(const PixelArea&) const = default;
};

}  // namespace lockstep::data

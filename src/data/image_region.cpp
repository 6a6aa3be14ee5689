#include "data/image_region.h"

#include <algorithm>

namespace lockstep::data {
namespace {

/// All `n` pixels are resized to `size` outputs.
ResizedAxis whole(int n, int size) { return {.n = n, .first = 0, .length = n, .resized = size, .corner = 0}; }

/// The centre of `length` pixels: the pixels from which the outputs, from the first to the last, are computed.
ResizedAxis centre(int length, int shorter_length, const ImageShaping& shaping) {
  const CentreCrop crop = centre_crop(length, shorter_length, shaping.image_size, shaping.resize);
  ResizedAxis axis{.n = length,
                   .first = 0,
                   .length = length,
                   .resized = static_cast<std::int32_t>(crop.resized),
                   .corner = crop.corner};
  const ResizeTaps first = ResizedOutput(axis, 0).taps(), last = ResizedOutput(axis, shaping.image_size - 1).taps();
  axis.first = first.begin;
  axis.n = last.end - first.begin;
  return axis;
}

}  // namespace

StoredRegion region_of(const ImageShaping& shaping, int height, int width, std::uint32_t sample_id,
                       std::uint32_t epoch) {
  if (!shaping.resized_crop) {
    const int shorter = std::min(height, width);
    const ImageRegion region{.rows = centre(height, shorter, shaping), .columns = centre(width, shorter, shaping)};
    return {.region = region, .top = region.rows.first, .left = region.columns.first};
  }
  // A random crop is cut out first, so that pixels outside of it have no influence. Its corners are whole pixels.
  const Box box = random_box(height, width, shaping.seed, sample_id, epoch);
  const auto side = [](double from, double to) { return static_cast<int>(to) - static_cast<int>(from); };
  return {.region = {.rows = whole(side(box.top, box.bottom), shaping.image_size),
                     .columns = whole(side(box.left, box.right), shaping.image_size)},
          .top = static_cast<int>(box.top),
          .left = static_cast<int>(box.left)};
}

void RegionBounds::add(const ImageShaping& shaping, int image_height, int image_width) {
  int rows = 0, columns = 0;
  if (shaping.resized_crop) {
    // The longer side is at most 4/3 of the other, and both are rounded.
    const auto longest = [](int other) { return (4 * std::int64_t{other} + 2) / 3 + 1; };
    rows = static_cast<int>(std::min<std::int64_t>(image_height, longest(image_width)));
    columns = static_cast<int>(std::min<std::int64_t>(image_width, longest(image_height)));
  } else {
    const ImageRegion region = region_of(shaping, image_height, image_width, 0, 0).region;
    rows = region.rows.n;
    columns = region.columns.n;
  }
  height = std::max(height, rows);
  width = std::max(width, columns);
  pixels = std::max(pixels, std::int64_t{rows} * columns);
  pixels_of_rows = std::max(pixels_of_rows, std::int64_t{rows} * image_width);
}

}  // namespace lockstep::data

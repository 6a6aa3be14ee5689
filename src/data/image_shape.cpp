#include "data/image_shape.h"

#include <algorithm>
#include <cmath>

#include "lockstep/philox.h"

namespace lockstep::data {
namespace {

constexpr int kTries = 10;
constexpr double kLeastArea = 0.08, kLeastRatio = 3.0 / 4.0, kGreatestRatio = 4.0 / 3.0;

Box box_at(int left, int top, int width, int height) {
  return {double(left), double(top), double(left) + width, double(top) + height};
}

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

Box random_box(int height, int width, std::uint32_t seed, std::uint32_t sample_id, std::uint32_t epoch) {
  const Philox philox(seed, RandomPurpose::resized_crop, sample_id, epoch);
  const double area = static_cast<double>(height) * width;
  for (int i = 0; i < kTries; ++i) {
    const auto shape = philox.block(static_cast<std::uint64_t>(i));
    const double part = area * (kLeastArea + (1 - kLeastArea) * Philox::uniform(shape, 0));
    const double ratio = kLeastRatio * std::pow(kGreatestRatio / kLeastRatio, Philox::uniform(shape, 1));
    const int w = static_cast<int>(std::lround(std::sqrt(part * ratio)));
    const int h = static_cast<int>(std::lround(std::sqrt(part / ratio)));
    if (w < 1 || h < 1 || w > width || h > height) continue;
    const auto place = philox.block(kTries);
    return box_at(static_cast<int>(Philox::below(place[0], static_cast<std::uint32_t>(width - w + 1))),
                  static_cast<int>(Philox::below(place[1], static_cast<std::uint32_t>(height - h + 1))), w, h);
  }
  int w = width, h = height;
  if (width < kLeastRatio * height) h = static_cast<int>(std::lround(width / kLeastRatio));
  if (width > kGreatestRatio * height) w = static_cast<int>(std::lround(height * kGreatestRatio));
  return box_at((width - w) / 2, (height - h) / 2, w, h);
}

CentreCrop centre_crop(int length, int shorter_length, int image_size, int resize) {
  // The resized sides and the corner are whole numbers. The longer side is scaled in proportion to the shorter one and
  // rounded down; the corner is rounded to nearest.
  const std::int64_t resized = std::int64_t{length} * resized_side(image_size, resize) / shorter_length;
  return {resized, static_cast<int>(std::nearbyint(static_cast<double>(resized - image_size) / 2))};
}

Box centre_box(int height, int width, int image_size, int resize) {
  // Resizing and then cropping equals resizing the part that remains.
  const auto interval = [&](int length, double& from, double& to) {
    const CentreCrop crop = centre_crop(length, std::min(height, width), image_size, resize);
    const auto resized = static_cast<double>(crop.resized);
    from = crop.corner * static_cast<double>(length) / resized;
    to = std::min<double>(length, (static_cast<double>(crop.corner) + image_size) * length / resized);
  };
  Box box;
  interval(width, box.left, box.right);
  interval(height, box.top, box.bottom);
  return box;
}

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

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

}  // namespace lockstep::data

#include "data/augment.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <numbers>
#include <utility>

#include "base/clock.h"
#include "base/pool.h"
#include "lockstep/error.h"
#include "lockstep/philox.h"

namespace lockstep::data {
namespace {

using Byte = std::uint8_t;
using Table = std::array<Byte, 256>;

Byte cut_off(float value) { return static_cast<Byte>(std::clamp(value, 0.0f, 255.0f)); }
Byte rounded(float value) { return static_cast<Byte>(std::clamp(std::rint(value), 0.0f, 255.0f)); }

/// strength * value + (1 - strength) * other, in fp32.
struct Blend {
  explicit Blend(double strength) : factor(static_cast<float>(strength)), rest(static_cast<float>(1 - strength)) {}
  Byte operator()(float value, float other) const { return cut_off(factor * value + rest * other); }
  float factor, rest;
};

Byte grey(const Byte* pixel) {
  return static_cast<Byte>(0.2989f * static_cast<float>(pixel[0]) + 0.587f * static_cast<float>(pixel[1]) +
                           0.114f * static_cast<float>(pixel[2]));
}

template <typename Function>
Table table_of(const Function& function) {
  Table table;
  for (int value = 0; value < 256; ++value) table[static_cast<std::size_t>(value)] = function(value);
  return table;
}

void look_up(const Table& table, std::span<Byte> bytes) {
  for (Byte& byte : bytes) byte = table[byte];
}

void change_brightness(const Blend& blend, const Pixels& image) {
  look_up(table_of([&](int value) { return blend(static_cast<float>(value), 0); }), image.bytes);
}

void change_contrast(const Blend& blend, const Pixels& image) {
  double sum = 0;
  const std::size_t n_pixels = image.bytes.size() / static_cast<std::size_t>(image.channels);
  for (std::size_t i = 0; i < n_pixels; ++i) sum += image.channels == 3 ? grey(&image.bytes[3 * i]) : image.bytes[i];
  const auto mean = static_cast<float>(sum / static_cast<double>(n_pixels));
  look_up(table_of([&](int value) { return blend(static_cast<float>(value), mean); }), image.bytes);
}

void change_saturation(const Blend& blend, const Pixels& image) {
  if (image.channels != 3) return;
  for (std::size_t i = 0; i < image.bytes.size(); i += 3) {
    const float other = grey(&image.bytes[i]);
    for (std::size_t c = 0; c < 3; ++c) image.bytes[i + c] = blend(static_cast<float>(image.bytes[i + c]), other);
  }
}

/// Converts to hue, saturation and value and back, like torchvision's _rgb2hsv and _hsv2rgb.
void turn_hue(float offset, Byte* pixel) {
  const float r = static_cast<float>(pixel[0]) / 255.0f, g = static_cast<float>(pixel[1]) / 255.0f,
              b = static_cast<float>(pixel[2]) / 255.0f;
  const float value = std::max({r, g, b}), range = value - std::min({r, g, b});
  if (range == 0) return;
  const float saturation = range / value;
  const float from_r = (value - r) / range, from_g = (value - g) / range, from_b = (value - b) / range;
  const float sixths = value == r ? from_b - from_g : value == g ? 2.0f + from_r - from_b : 4.0f + from_g - from_r;
  float hue = std::fmod(sixths / 6.0f + 1.0f, 1.0f) + offset;
  hue -= std::floor(hue);
  const float sector = std::floor(hue * 6.0f), part = hue * 6.0f - sector;
  const float p = std::clamp(value * (1.0f - saturation), 0.0f, 1.0f),
              q = std::clamp(value * (1.0f - saturation * part), 0.0f, 1.0f),
              t = std::clamp(value * (1.0f - saturation * (1.0f - part)), 0.0f, 1.0f);
  const std::array<std::array<float, 3>, 6> sectors{
      {{value, t, p}, {q, value, p}, {p, value, t}, {p, q, value}, {t, p, value}, {value, p, q}}};
  const std::array<float, 3>& rgb = sectors[static_cast<std::size_t>(sector) % 6];
  for (std::size_t c = 0; c < 3; ++c) pixel[c] = static_cast<Byte>(rgb[c] * 255.999f);
}

void change_hue(float offset, const Pixels& image) {
  if (image.channels != 3) return;
  for (std::size_t i = 0; i < image.bytes.size(); i += 3) turn_hue(offset, &image.bytes[i]);
}

/// Blends with the image smoothed by [1 1 1; 1 5 1; 1 1 1] / 13. Border pixels are not smoothed; they are blended with
/// themselves, which may lose a grey level by truncation.
void change_sharpness(const Blend& blend, const Pixels& image) {
  if (image.height <= 2 || image.width <= 2) return;
  image.scratch.assign(image.bytes.begin(), image.bytes.end());
  const std::ptrdiff_t channels = image.channels, row = image.width * channels;
  for (int h = 0; h < image.height; ++h) {
    const Byte* const from = image.scratch.data() + h * row;
    Byte* const to = image.bytes.data() + h * row;
    for (std::ptrdiff_t i = 0; i < row; ++i) {
      auto smooth = static_cast<float>(from[i]);
      if (h > 0 && h + 1 < image.height && i >= channels && i < row - channels) {
        int sum = 4 * from[i];
        for (const std::ptrdiff_t line : {-row, std::ptrdiff_t{0}, row})
          sum += from[line + i - channels] + from[line + i] + from[line + i + channels];
        smooth = std::rint(static_cast<float>(sum) / 13.0f);
      }
      to[i] = blend(static_cast<float>(from[i]), smooth);
    }
  }
}

/// Calls change(table, histogram) for each channel, and looks its bytes up in the table.
template <typename Function>
void change_channels(const Pixels& image, const Function& change) {
  const auto channels = static_cast<std::size_t>(image.channels);
  for (std::size_t c = 0; c < channels; ++c) {
    std::array<int, 256> histogram{};
    for (std::size_t i = c; i < image.bytes.size(); i += channels) ++histogram[image.bytes[i]];
    const Table table = change(histogram);
    for (std::size_t i = c; i < image.bytes.size(); i += channels) image.bytes[i] = table[image.bytes[i]];
  }
}

Table stretched(const std::array<int, 256>& histogram) {
  int least = 0, greatest = 255;
  while (histogram[static_cast<std::size_t>(least)] == 0) ++least;
  while (histogram[static_cast<std::size_t>(greatest)] == 0) --greatest;
  if (least == greatest) return table_of([](int value) { return static_cast<Byte>(value); });
  const float scale = 255.0f / static_cast<float>(greatest - least);
  return table_of([&](int value) { return cut_off(static_cast<float>(value - least) * scale); });
}

Table equalized(const std::array<int, 256>& histogram) {
  int n_pixels = 0, last = 0;
  for (const int count : histogram) {
    n_pixels += count;
    if (count > 0) last = count;
  }
  const int step = (n_pixels - last) / 255;
  int below = 0;
  return table_of([&](int value) {
    if (step == 0) return static_cast<Byte>(value);
    const int level = value == 0 ? 0 : (below + step / 2) / step;
    below += histogram[static_cast<std::size_t>(value)];
    return static_cast<Byte>(std::min(level, 255));
  });
}

/// Maps the centre of an output pixel to a position in the source. Both are measured from the centre of the image.
struct Affine {
  double xx = 1, xy = 0, x = 0;
  double yx = 0, yy = 1, y = 0;
};

/// Bilinear interpolation, and black beyond the border, as in grid_sample with padding_mode zeros.
void transform(const Affine& map, const Pixels& image) {
  image.scratch.assign(image.bytes.begin(), image.bytes.end());
  const int height = image.height, width = image.width, channels = image.channels;
  const Byte* const source = image.scratch.data();
  Byte* to = image.bytes.data();
  const float middle_x = 0.5f * static_cast<float>(width), middle_y = 0.5f * static_cast<float>(height);
  const auto xx = static_cast<float>(map.xx), yx = static_cast<float>(map.yx);
  for (int h = 0; h < height; ++h) {
    const double at_y = h + 0.5 - middle_y;
    const auto row_x = static_cast<float>(map.xy * at_y + map.x) + middle_x - 0.5f;
    const auto row_y = static_cast<float>(map.yy * at_y + map.y) + middle_y - 0.5f;
    for (int w = 0; w < width; ++w, to += channels) {
      const float at_x = static_cast<float>(w) + 0.5f - middle_x;
      const float x = xx * at_x + row_x, y = yx * at_x + row_y;
      if (!(x > -1.0f && x < static_cast<float>(width) && y > -1.0f && y < static_cast<float>(height))) {
        std::fill_n(to, channels, Byte{0});
        continue;
      }
      const float left = std::floor(x), top = std::floor(y), part_x = x - left, part_y = y - top;
      const int x0 = static_cast<int>(left), y0 = static_cast<int>(top);
      const auto weight = [&](int at, int size, float part) { return at >= 0 && at < size ? part : 0.0f; };
      const float left_weight = weight(x0, width, 1.0f - part_x), right_weight = weight(x0 + 1, width, part_x);
      const float top_weight = weight(y0, height, 1.0f - part_y), bottom_weight = weight(y0 + 1, height, part_y);
      // Positions with weight 0 are clamped into the image.
      const int x_left = std::max(x0, 0), x_right = std::min(x0 + 1, width - 1);
      const Byte* const upper = source + std::ptrdiff_t{std::max(y0, 0)} * width * channels;
      const Byte* const lower = source + std::ptrdiff_t{std::min(y0 + 1, height - 1)} * width * channels;
      for (int c = 0; c < channels; ++c) {
        const auto row = [&](const Byte* bytes) {
          return left_weight * static_cast<float>(bytes[x_left * channels + c]) +
                 right_weight * static_cast<float>(bytes[x_right * channels + c]);
        };
        to[c] = rounded(top_weight * row(upper) + bottom_weight * row(lower));
      }
    }
  }
}

Affine rotation(double degrees) {
  const double angle = degrees * std::numbers::pi / 180, cosine = std::cos(angle), sine = std::sin(angle);
  return {.xx = cosine, .xy = -sine, .yx = sine, .yy = cosine};
}

}  // namespace

void apply(Change change, double strength, const Pixels& image) {
  const auto factor = static_cast<float>(strength);
  switch (change) {
    case Change::identity:
      return;
    case Change::shear_x:  // about the upper left corner, like shear_y
      return transform({.xy = strength, .x = strength * 0.5 * image.height}, image);
    case Change::shear_y:
      return transform({.yx = strength, .y = strength * 0.5 * image.width}, image);
    case Change::translate_x:
      return transform({.x = -strength}, image);
    case Change::translate_y:
      return transform({.y = -strength}, image);
    case Change::rotate:
      return transform(rotation(strength), image);
    case Change::brightness:
      return change_brightness(Blend(strength), image);
    case Change::saturation:
      return change_saturation(Blend(strength), image);
    case Change::contrast:
      return change_contrast(Blend(strength), image);
    case Change::sharpness:
      return change_sharpness(Blend(strength), image);
    case Change::posterize: {
      const int mask = 0xff & ~((1 << (8 - static_cast<int>(strength))) - 1);
      return look_up(table_of([&](int value) { return static_cast<Byte>(value & mask); }), image.bytes);
    }
    case Change::solarize:
      return look_up(table_of([&](int value) {
                       return static_cast<Byte>(static_cast<float>(value) >= factor ? 255 - value : value);
                     }),
                     image.bytes);
    case Change::autocontrast:
      return change_channels(image, stretched);
    case Change::equalize:
      return change_channels(image, equalized);
    case Change::hue:
      return change_hue(factor, image);
  }
}

DrawnChange trivial_change(int operation, int strength, bool is_negative) {
  const auto change = static_cast<Change>(operation);
  const double part = strength / 30.0, sign = is_negative ? -1 : 1;
  switch (change) {
    case Change::shear_x:
    case Change::shear_y:
      return {change, sign * 0.99 * part};
    case Change::translate_x:
    case Change::translate_y:
      return {change, sign * std::floor(32.0 * part)};
    case Change::rotate:
      return {change, sign * 135.0 * part};
    case Change::brightness:
    case Change::saturation:
    case Change::contrast:
    case Change::sharpness:
      return {change, 1 + sign * 0.99 * part};
    case Change::posterize:
      return {change, 8 - std::rint(strength / 5.0)};
    case Change::solarize:
      return {change, 255.0 * (1 - part)};
    default:
      return {change, 0};
  }
}

JitterChanges draw_jitter(const ColourJitter& colours, std::uint32_t seed, std::uint32_t sample_id,
                          std::uint32_t epoch) {
  const Philox random(seed, RandomPurpose::colour_jitter, sample_id, epoch);
  const auto first = random.block(1), second = random.block(2);
  const auto between = [](double low, double high, double uniform) { return low + (high - low) * uniform; };
  const auto factor = [&](double range, double uniform) {
    return between(std::max(0.0, 1 - range), 1 + range, uniform);
  };
  JitterChanges changes;
  if (colours.brightness > 0) changes[0] = {Change::brightness, factor(colours.brightness, Philox::uniform(first, 0))};
  if (colours.contrast > 0) changes[1] = {Change::contrast, factor(colours.contrast, Philox::uniform(first, 1))};
  if (colours.saturation > 0) changes[2] = {Change::saturation, factor(colours.saturation, Philox::uniform(second, 0))};
  if (colours.hue > 0) changes[3] = {Change::hue, between(-colours.hue, colours.hue, Philox::uniform(second, 1))};
  const auto swaps = random.block(0);
  for (std::uint32_t i = 3; i > 0; --i) std::swap(changes[i], changes[Philox::below(swaps[i], i + 1)]);
  return changes;
}

namespace {

/// Images of another set, augmented.
class AugmentedSet final : public DerivedImageSet {
 public:
  AugmentedSet(std::unique_ptr<ImageSet> set, const AugmentOptions& options)
      : DerivedImageSet(std::move(set)), options_(options) {
    require(info_.channels == 1 || info_.channels == 3, ErrorCode::not_supported,
            "{} has images of {} channels; only the colours of images of 1 or 3 channels can be changed", info_.path,
            info_.channels);
    info_.reader_bytes += info_.image_bytes();
  }

  void read_image(std::int64_t sample, std::uint32_t epoch, std::span<std::uint8_t> image,
                  std::int32_t& label) const override {
    const auto begin = Clock::now();
    set_->read_image(sample, epoch, image, label);
    const auto is_read = Clock::now();
    auto scratch = pool_.lend();
    augment(options_, static_cast<std::uint32_t>(info_.first_sample + sample), epoch,
            {.bytes = image,
             .height = info_.height,
             .width = info_.width,
             .channels = info_.channels,
             .scratch = *scratch});
    reading_ns_.fetch_add((is_read - begin).count(), std::memory_order_relaxed);
    augmenting_ns_.fetch_add((Clock::now() - is_read).count(), std::memory_order_relaxed);
  }
  /// Images that are otherwise resized on the device are resized here, since they are changed at their final size.
  ReaderWork reader_work() const override {
    ReaderWork work = set_->reader_work();
    const double pixels = static_cast<double>(info_.height) * info_.width;
    for (const Field& field : set_->fields())
      if (field.packing == Packing::packed) work.resized_pixels += pixels;
    if (options_.trivial_augment) work.trivial_augment_pixels += pixels;
    if (options_.colours.is_on()) work.color_jitter_pixels += pixels;
    return work;
  }
  /// Advice for faster reading, only if reading takes most of the time: another way of storing the images does not make
  /// the augmentation faster.
  std::vector<std::string> faster_reading() const override {
    if (reading_ns_ >= augmenting_ns_) return DerivedImageSet::faster_reading();
    std::vector<std::string> list{"a smaller data.image_size"};
    if (options_.trivial_augment) list.emplace_back("data.augment without trivial_augment");
    if (options_.colours.is_on()) list.emplace_back("no data.color_jitter");
    return list;
  }

 private:
  AugmentOptions options_;
  mutable Pool<std::vector<std::uint8_t>> pool_;
  mutable std::atomic<Clock::rep> reading_ns_ = 0, augmenting_ns_ = 0;  // totals of all readers so far
};

}  // namespace

void augment(const AugmentOptions& options, std::uint32_t sample_id, std::uint32_t epoch, const Pixels& image) {
  if (options.colours.is_on())
    for (const DrawnChange& c : draw_jitter(options.colours, options.seed, sample_id, epoch))
      apply(c.change, c.strength, image);
  if (!options.trivial_augment) return;
  const auto random = Philox(options.seed, RandomPurpose::trivial_augment, sample_id, epoch).block(0);
  const DrawnChange drawn = trivial_change(static_cast<int>(Philox::below(random[0], kTrivialChanges)),
                                           static_cast<int>(Philox::below(random[1], 31)), (random[2] & 1u) != 0);
  apply(drawn.change, drawn.strength, image);
}

std::unique_ptr<ImageSet> augment_image_set(std::unique_ptr<ImageSet> set, const AugmentOptions& options) {
  if (!options.is_on()) return set;
  return std::make_unique<AugmentedSet>(std::move(set), options);
}

}  // namespace lockstep::data

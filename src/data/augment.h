// Random changes of the colours and the geometry of training images, on the bytes that readers deliver. The formulas
// are those of torchvision's functional transforms for uint8 tensors: results are clamped to [0, 255], and are
// truncated or rounded where torchvision's are. All numbers are drawn by Philox for (seed, sample, epoch).
//
// ColorJitter: brightness, contrast, saturation and hue are changed in a random order, each by a random factor (for
// hue, an offset). TrivialAugmentWide (Mueller and Hutter, "TrivialAugment: Tuning-free Yet State-of-the-Art Data
// Augmentation", 2021): one of 14 operations with one of 31 strengths, with bilinear interpolation and black beyond the
// border, as torchvision's references use it.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "data/image_set.h"

namespace lockstep::data {

/// The ranges of ColorJitter: a factor is uniform in [max(0, 1 - x), 1 + x], and the offset of hue is uniform in [-hue,
/// hue], where 1 is the whole circle. 0: unchanged.
struct ColourJitter {
  double brightness = 0, contrast = 0, saturation = 0, hue = 0;
  bool is_on() const { return brightness > 0 || contrast > 0 || saturation > 0 || hue > 0; }
};

struct AugmentOptions {
  ColourJitter colours{};
  bool trivial_augment = false;
  std::uint32_t seed = 0;
  bool is_on() const { return colours.is_on() || trivial_augment; }
};

/// An image (height, width, channels) with 1 or 3 channels, which the functions change in place. They reuse `scratch`.
struct Pixels {
  std::span<std::uint8_t> bytes;
  int height = 0, width = 0, channels = 0;
  std::vector<std::uint8_t>& scratch;
};

enum class Change : std::uint8_t {
  identity,
  shear_x,
  shear_y,
  translate_x,
  translate_y,
  rotate,
  brightness,
  saturation,
  contrast,
  sharpness,
  posterize,
  solarize,
  autocontrast,
  equalize,
  hue  // not one of TrivialAugment's
};
inline constexpr int kTrivialChanges = 14;
/// `strength`: the tangent for shears, whole pixels for translations, degrees (counterclockwise) for the rotation, the
/// factor for brightness to sharpness, the number of bits that posterize keeps, the threshold of solarize, and the
/// offset of hue.
void apply(Change change, double strength, const Pixels& image);

struct DrawnChange {
  Change change = Change::identity;
  double strength = 0;
};

/// The changes that ColorJitter makes to an image, in order. Those that are off are `identity`.
using JitterChanges = std::array<DrawnChange, 4>;
JitterChanges draw_jitter(const ColourJitter& colours, std::uint32_t seed, std::uint32_t sample_id,
                          std::uint32_t epoch);

/// The change that TrivialAugmentWide makes for these draws: operation 0 to 13, strength 0 to 30, and whether the
/// strength is negative, if it has a sign.
DrawnChange trivial_change(int operation, int strength, bool is_negative);

/// Draws the changes for a sample and applies them.
void augment(const AugmentOptions& options, std::uint32_t sample_id, std::uint32_t epoch, const Pixels& image);

/// `set` with its images augmented; `set` itself if nothing is on. Throws not_supported unless they have 1 or 3
/// channels.
std::unique_ptr<ImageSet> augment_image_set(std::unique_ptr<ImageSet> set, const AugmentOptions& options);

}  // namespace lockstep::data

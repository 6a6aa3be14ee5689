// The part of a stored image that becomes a sample, and how it is resized. All numbers are integers, so that every
// backend computes the same weights and, since the sums are exact too, the same bytes. In each direction, pixels are
// resized to outputs as in Pillow's resize(BILINEAR) and torchvision's resize(antialias=True):
//   out[i] = sum_k w(i, k) in[k] / sum_k w(i, k),  w(i, k) = max(0, 1 - |k + 0.5 - centre_i| / max(1, scale)),
//   centre_i = (i + 0.5) scale,  scale = length / resized
// first along rows, then along columns, rounded to 8 bits after each. The weights are fixed point with
// kResizeFractionBits (lockstep/resize_rows.h).
#pragma once

#include <cstdint>

namespace lockstep {

/// One direction of a resize. `length` pixels are resized to `resized` outputs; the outputs from `corner` on are used.
/// Only the pixels that these are computed from are stored: [first, first + n) of the `length` pixels.
struct ResizedAxis {
  std::int32_t n = 0, first = 0;
  std::int32_t length = 0, resized = 0, corner = 0;

  bool operator==(const ResizedAxis&) const = default;
};

/// An empty region stands for an image whose bytes are all 0.
struct ImageRegion {
  ResizedAxis rows, columns;

  constexpr std::int64_t n_pixels() const { return std::int64_t{rows.n} * columns.n; }
  bool operator==(const ImageRegion&) const = default;
};
inline constexpr int kImageRegionNumbers = 10;  // int32 values in an ImageRegion
static_assert(sizeof(ImageRegion) == kImageRegionNumbers * sizeof(std::int32_t));

/// The pixels that an output is computed from: [begin, end), counted from the first of the `length` pixels.
struct ResizeTaps {
  std::int32_t begin = 0, end = 0;
};

/// The maximum number of taps of an output if at most `n` pixels are stored for `n_outputs` outputs.
constexpr int max_resize_taps(int n, int n_outputs) { return 2 * ((n + n_outputs - 1) / n_outputs) + 1; }

/// The weights of one output of an axis, as fractions with a common denominator: 2 resized centre_i is an integer.
class ResizedOutput {
 public:
  /// `output` is counted from the corner.
  constexpr ResizedOutput(const ResizedAxis& axis, int output)
      : step_(2 * std::int64_t{axis.resized}),
        centre_((2 * (std::int64_t{axis.corner} + output) + 1) * axis.length),
        support_(2 * std::int64_t{axis.resized < axis.length ? axis.length : axis.resized}) {
    const std::int64_t last = std::int64_t{axis.first} + axis.n;
    taps_.begin = within(floor_of(centre_ - support_ + axis.resized), axis.first, last - 1);
    taps_.end = within(floor_of(centre_ + support_ + axis.resized), taps_.begin + std::int64_t{1}, last);
    for (int k = taps_.begin; k < taps_.end; ++k) total_ += share(k);
  }

  constexpr ResizeTaps taps() const { return taps_; }
  /// The weight of pixel `k`, times 2^fraction_bits. Each operation is exact or rounded as IEEE 754 prescribes, even if
  /// a compiler fuses the last two.
  constexpr std::int32_t weight(int k, int fraction_bits) const {
    const double fraction = static_cast<double>(share(k)) / static_cast<double>(total_);
    return static_cast<std::int32_t>(fraction * static_cast<double>(1 << fraction_bits) + 0.5);
  }

 private:
  constexpr std::int64_t share(int k) const {
    const std::int64_t distance = (2 * std::int64_t{k} + 1) * (step_ / 2) - centre_;
    const std::int64_t left = support_ - (distance < 0 ? -distance : distance);
    return left > 0 ? left : 0;
  }
  /// Divides doubles, which is faster on a GPU than dividing 64-bit integers. The quotient is exact or nearly so.
  constexpr std::int64_t floor_of(std::int64_t numerator) const {
    const auto quotient = static_cast<std::int64_t>(static_cast<double>(numerator) / static_cast<double>(step_));
    return quotient * step_ > numerator ? quotient - 1 : quotient;
  }
  static constexpr std::int32_t within(std::int64_t value, std::int64_t least, std::int64_t most) {
    return static_cast<std::int32_t>(value < least ? least : value > most ? most : value);
  }

  std::int64_t step_, centre_, support_;  // all times 2 resized
  std::int64_t total_ = 0;
  ResizeTaps taps_;
};

}  // namespace lockstep

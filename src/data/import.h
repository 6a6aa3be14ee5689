// What the imports of image sets have in common.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "data/image_file.h"
#include "data/image_set.h"

namespace lockstep::data {

struct ImportOptions {
  std::string source, output;
  std::string split = "train";      // train, val or test
  std::int64_t per_class = 0;       // the first so many of each class; 0: all
  std::int64_t limit = 0;           // the first so many samples; 0: all
  std::vector<float> mean, stddev;  // of values in [0, 1]; empty: of the images that are imported
  bool replace = false;             // an existing output
  Placement placement = kDefaultPlacement;
};

struct ImportResult {
  ImageSetInfo info;
  std::vector<std::string> files;  // that were read, where they are few
  std::vector<std::int64_t> samples_per_class;
  std::uint64_t size_bytes = 0;      // of the output
  std::string storage;               // how the images are stored and why, where there is a choice
  std::vector<std::string> skipped;  // what could not be decoded: a sentence each
};

/// `progress(done, total)` counts samples, or what else takes its time.
using ImportProgress = std::function<void(std::int64_t done, std::int64_t total)>;

/// Sums over the three channels of images; whole numbers, so the order does not matter. 64 bits hold 2.8e14 pixels.
class ChannelSums {
 public:
  static constexpr std::size_t kChannels = 3;

  /// `hwc`: (pixels, 3)
  void add(const std::uint8_t* hwc, std::int64_t n_pixels) {
    for (std::int64_t i = 0; i < n_pixels; ++i)
      for (std::size_t c = 0; c < kChannels; ++c) {
        const std::uint32_t v = *hwc++;
        sum_[c] += v;
        sum_of_squares_[c] += v * v;
      }
    n_pixels_ += static_cast<std::uint64_t>(n_pixels);
  }
  void add(const ChannelSums& other) {
    for (std::size_t c = 0; c < kChannels; ++c)
      sum_[c] += other.sum_[c], sum_of_squares_[c] += other.sum_of_squares_[c];
    n_pixels_ += other.n_pixels_;
  }

  /// Of values in [0, 1].
  float mean(std::size_t c) const {
    return static_cast<float>(static_cast<double>(sum_[c]) / (255.0 * static_cast<double>(n_pixels_)));
  }
  /// Of the population, as usual for images: sqrt(n * sum of squares - sum^2) / n.
  float stddev(std::size_t c) const {
    using Wide = unsigned __int128;
    const Wide scaled = Wide{n_pixels_} * sum_of_squares_[c] - Wide{sum_[c]} * sum_[c];
    return static_cast<float>(std::sqrt(static_cast<double>(scaled)) / (255.0 * static_cast<double>(n_pixels_)));
  }

 private:
  std::array<std::uint64_t, kChannels> sum_{}, sum_of_squares_{};
  std::uint64_t n_pixels_ = 0;
};

/// Throws usage unless mean and std have three values each, or none, and chunks are no smaller than the alignment.
void check_options(const ImportOptions& options);
/// Mean and std as given, else of the sums. Throws data_source where an std is 0.
void set_statistics(const ImportOptions& options, const ChannelSums& sums, ImageSetInfo& info);

}  // namespace lockstep::data

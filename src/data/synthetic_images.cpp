// The synthetic set: image = (pattern + noise) / 2. The pattern is an 8 x 8 grid of random bytes for each class and
// channel, stretched over the image, and the same for all splits. The noise consists of uniform bytes that depend on
// the sample and the split. So a network can learn the set, and only the grids are stored. The label of sample i is i %
// classes.
#include <algorithm>

#include "data/image_set.h"
#include "lockstep/error.h"
#include "lockstep/philox.h"

namespace lockstep::data {
namespace {

constexpr int kGrid = 8;
constexpr int kMaxClasses = 1 << 20;  // each needs 192 bytes for its pattern, and a name
/// The epoch of Philox's counter is unused here: it holds the split's hash, or this number for the pattern.
constexpr std::uint32_t kPatternEpoch = 0xffffffffu;

/// Bytes of a Philox stream in order, sixteen per block.
class ByteStream {
 public:
  explicit ByteStream(const Philox& philox) : philox_(philox) {}
  std::uint8_t next() {
    if (used_ == 16) {
      block_ = philox_.block(index_++);
      used_ = 0;
    }
    const auto byte = static_cast<std::uint8_t>(block_[used_ / 4] >> (8 * (used_ % 4)));
    ++used_;
    return byte;
  }

 private:
  Philox philox_;
  std::array<std::uint32_t, 4> block_{};
  std::uint64_t index_ = 0;
  unsigned used_ = 16;
};

class SyntheticSet : public ImageSet {
 public:
  SyntheticSet(std::uint32_t seed, ImageSetInfo info) : seed_(seed), info_(std::move(info)) {
    split_ = name_hash(info_.split) & 0x7fffffffu;  // never kPatternEpoch
    const std::size_t grid_bytes = static_cast<std::size_t>(kGrid) * kGrid * info_.channels;
    patterns_.resize(grid_bytes * info_.classes);
    for (int k = 0; k < info_.classes; ++k) {
      ByteStream bytes(Philox(seed_, RandomPurpose::synthetic, static_cast<std::uint32_t>(k), kPatternEpoch));
      std::generate_n(patterns_.begin() + static_cast<std::ptrdiff_t>(k * grid_bytes), grid_bytes,
                      [&] { return bytes.next(); });
    }
  }

  const ImageSetInfo& info() const override { return info_; }
  std::vector<std::int32_t> classes() const override {
    std::vector<std::int32_t> classes(static_cast<std::size_t>(info_.n_samples));
    for (std::size_t i = 0; i < classes.size(); ++i) classes[i] = static_cast<std::int32_t>(i) % info_.classes;
    return classes;
  }

  void read_image(std::int64_t sample, std::uint32_t, std::span<std::uint8_t> image,
                  std::int32_t& label) const override {
    require(sample >= 0 && sample < info_.n_samples && image.size() == info_.image_bytes(), ErrorCode::internal,
            "sample {} of {} cannot be written to a buffer of {} bytes", sample, info_.n_samples, image.size());
    sample += info_.first_sample;
    label = static_cast<std::int32_t>(sample % info_.classes);
    const std::size_t channels = static_cast<std::size_t>(info_.channels);
    const std::uint8_t* grid = patterns_.data() + static_cast<std::size_t>(label) * kGrid * kGrid * channels;
    ByteStream noise(Philox(seed_, RandomPurpose::synthetic, static_cast<std::uint32_t>(sample), split_));
    std::uint8_t* out = image.data();
    for (int y = 0; y < info_.height; ++y)
      for (int x = 0; x < info_.width; ++x) {
        const std::uint8_t* pattern = grid + (y * kGrid / info_.height * kGrid + x * kGrid / info_.width) * channels;
        for (std::size_t c = 0; c < channels; ++c) *out++ = static_cast<std::uint8_t>((pattern[c] + noise.next()) / 2);
      }
  }

 private:
  std::uint32_t seed_;
  std::uint32_t split_ = 0;
  ImageSetInfo info_;
  std::vector<std::uint8_t> patterns_;  // (classes, kGrid, kGrid, C)
};

}  // namespace

std::unique_ptr<ImageSet> make_synthetic_set(std::uint32_t seed, std::int64_t n_samples, int height, int width,
                                             int channels, int classes, const std::string& split,
                                             std::int64_t first_sample) {
  require(n_samples > 0 && first_sample >= 0 && n_samples <= kMaxSamples - first_sample && height > 0 && width > 0 &&
              channels > 0 && classes > 0,
          ErrorCode::data_range,
          "a synthetic set of {} images {} x {} x {} in {} classes is not possible: all numbers must be positive",
          n_samples, height, width, channels, classes);
  require(classes <= kMaxClasses, ErrorCode::data_range,
          "a synthetic set has at most {} classes, found model.classes={}", kMaxClasses, classes);
  ImageSetInfo info;
  info.path = "synthetic";
  info.split = split;
  info.n_samples = n_samples;
  info.first_sample = first_sample;
  info.height = height;
  info.width = width;
  info.channels = channels;
  info.classes = classes;
  // Half the sum of two uniform bytes: mean 127.25, standard deviation 73.9 / sqrt(2), of 255.
  info.mean.assign(static_cast<std::size_t>(channels), 0.5f);
  info.stddev.assign(static_cast<std::size_t>(channels), 0.205f);
  for (int k = 0; k < classes; ++k) info.class_names.push_back("class " + std::to_string(k));
  return std::make_unique<SyntheticSet>(seed, std::move(info));
}

}  // namespace lockstep::data

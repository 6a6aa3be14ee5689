// Colour jitter and TrivialAugmentWide, compared with torchvision (test/golden/augment.json): the operations and their
// strengths, and whole calls of ColorJitter. Also what is drawn at random.
#include "data/augment.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <set>
#include <thread>

namespace lockstep::data {
namespace {

using Bytes = std::vector<std::uint8_t>;

nlohmann::json golden() { return nlohmann::json::parse(std::ifstream("test/golden/augment.json")); }

Bytes changed(Change change, double strength, Bytes bytes, int height, int width, int channels) {
  Bytes scratch;
  apply(change, strength, {.bytes = bytes, .height = height, .width = width, .channels = channels, .scratch = scratch});
  return bytes;
}

/// The maximum difference, and the fraction of values that differ at all.
struct Difference {
  int greatest = 0;
  double share = 0;
};
Difference difference(const Bytes& a, const Bytes& b) {
  EXPECT_EQ(a.size(), b.size());
  Difference out;
  int n = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    out.greatest = std::max(out.greatest, std::abs(int{a[i]} - int{b[i]}));
    n += a[i] != b[i] ? 1 : 0;
  }
  out.share = n / static_cast<double>(a.size());
  return out;
}

/// fp32 products that are truncated or rounded near an integer may fall on either side of it.
void expect_close(const Bytes& actual, const Bytes& expected) {
  const Difference found = difference(actual, expected);
  EXPECT_LE(found.greatest, 1);
  EXPECT_LE(found.share, 0.02);
}

TEST(Augment, ChangesImagesAsTorchvision) {
  const nlohmann::json all = golden();
  const auto image = all["image"].get<Bytes>(), grey = all["grey"].get<Bytes>();
  std::map<Change, int> n_cases;
  for (const nlohmann::json& c : all["trivial"]) {
    const DrawnChange change = trivial_change(c["operation"], c["strength"], c["negative"]);
    SCOPED_TRACE(fmt::format("operation {}, strength {}", c["operation"].get<int>(), change.strength));
    const auto expected = c["pixels"].get<Bytes>();
    expect_close(changed(change.change, change.strength, image, 11, 9, 3), expected);
    const bool leaves_it = c["operation"] == 0 || c["operation"] == 13;  // equalize needs 256 pixels, as `grey` has
    EXPECT_EQ(expected == image, leaves_it) << "the golden file shows what the operation does";
    ++n_cases[change.change];
  }
  EXPECT_EQ(n_cases.size(), 14u);
  for (const nlohmann::json& c : all["trivial_grey"]) {
    const DrawnChange change = trivial_change(c["operation"], c["strength"], c["negative"]);
    SCOPED_TRACE(fmt::format("grey, operation {}", c["operation"].get<int>()));
    expect_close(changed(change.change, change.strength, grey, 20, 18, 1), c["pixels"].get<Bytes>());
  }
  for (const nlohmann::json& c : all["hue"]) {
    SCOPED_TRACE(c["factor"].dump());
    expect_close(changed(Change::hue, c["factor"], image, 11, 9, 3), c["pixels"].get<Bytes>());
    EXPECT_EQ(changed(Change::hue, c["factor"], grey, 20, 18, 1), grey);
  }
}

TEST(Augment, HasTheStrengthsOfTorchvision) {
  const nlohmann::json strengths = golden()["strengths"];
  for (int operation = 1; operation < 12; ++operation)
    for (int i = 0; i < 31; ++i) {
      const double of_torchvision = strengths[static_cast<std::size_t>(operation)][static_cast<std::size_t>(i)];
      const DrawnChange plus = trivial_change(operation, i, false), minus = trivial_change(operation, i, true);
      SCOPED_TRACE(fmt::format("operation {}, strength {}", operation, i));
      const bool is_factor = plus.change == Change::brightness || plus.change == Change::saturation ||
                             plus.change == Change::contrast || plus.change == Change::sharpness;
      const bool is_shift = plus.change == Change::translate_x || plus.change == Change::translate_y;
      const double base = is_factor ? 1 : 0, whole = is_shift ? std::trunc(of_torchvision) : of_torchvision;
      EXPECT_NEAR(plus.strength - base, whole, 2e-5);
      const bool is_signed = plus.change != Change::posterize && plus.change != Change::solarize;
      EXPECT_NEAR(minus.strength - base, is_signed ? -whole : whole, 2e-5);
    }
}

/// Whole calls of ColorJitter, with its changes in each order.
TEST(Augment, JittersAsTorchvision) {
  constexpr Change kChanges[] = {Change::brightness, Change::contrast, Change::saturation, Change::hue};
  constexpr int kHeight = 7, kWidth = 6;
  const nlohmann::json all = golden();
  const auto image = all["image"].get<Bytes>();
  Bytes part;
  for (int h = 0; h < kHeight; ++h)
    part.insert(part.end(), image.begin() + 27 * h, image.begin() + 27 * h + 3 * kWidth);
  std::set<std::string> orders;
  for (const nlohmann::json& c : all["jitter"]) {
    SCOPED_TRACE(c["order"].dump() + " " + c["factors"].dump());
    Bytes jittered = part;
    for (const std::size_t number : c["order"].get<std::vector<std::size_t>>()) {
      const nlohmann::json& factor = c["factors"][number];
      if (!factor.is_null()) jittered = changed(kChanges[number], factor, jittered, kHeight, kWidth, 3);
    }
    const auto expected = c["pixels"].get<Bytes>();
    EXPECT_NE(expected, part);
    expect_close(jittered, expected);
    orders.insert(c["order"].dump());
  }
  EXPECT_EQ(all["jitter"].size(), 28u);
  EXPECT_EQ(orders.size(), 24u);
}

/// Checks that values are uniform: the ends of the range, to within a hundredth of it, and the mean.
void expect_uniform(const std::vector<double>& values, double low, double high) {
  const auto [least, greatest] = std::minmax_element(values.begin(), values.end());
  const double range = high - low, n = static_cast<double>(values.size());
  EXPECT_GE(*least, low);
  EXPECT_LE(*least, low + 0.01 * range);
  EXPECT_LE(*greatest, high);
  EXPECT_GE(*greatest, high - 0.01 * range);
  const double mean = std::accumulate(values.begin(), values.end(), 0.0) / n;
  EXPECT_NEAR(mean, 0.5 * (low + high), 4 * range * std::sqrt(1.0 / 12 / n)) << "four standard deviations";
}

/// Draws the factors that get_params of torchvision's ColorJitter draws, and each order with the same frequency.
TEST(Augment, DrawsTheFactorsAndTheOrderOfJitter) {
  const ColourJitter colours{.brightness = 0.4, .contrast = 1.5, .saturation = 0.2, .hue = 0.1};
  constexpr std::uint32_t kSamples = 4800;
  std::map<Change, std::vector<double>> factors;
  std::map<std::vector<Change>, int> orders;
  for (std::uint32_t sample = 0; sample < kSamples; ++sample) {
    std::vector<Change> order;
    for (const DrawnChange& c : draw_jitter(colours, 1, sample, 2)) {
      order.push_back(c.change);
      factors[c.change].push_back(c.strength);
    }
    ++orders[order];
  }
  ASSERT_EQ(factors.size(), 4u);
  for (const auto& [change, values] : factors) EXPECT_EQ(values.size(), kSamples);
  expect_uniform(factors[Change::brightness], 0.6, 1.4);
  expect_uniform(factors[Change::contrast], 0.0, 2.5);  // not below 0
  expect_uniform(factors[Change::saturation], 0.8, 1.2);
  expect_uniform(factors[Change::hue], -0.1, 0.1);
  EXPECT_EQ(orders.size(), 24u);
  for (const auto& [order, count] : orders) {  // 200 on average, with a standard deviation of 14
    EXPECT_GT(count, 140);
    EXPECT_LT(count, 260);
  }
}

Bytes ramp(int n) {
  Bytes bytes;
  for (int i = 0; i < n; ++i) bytes.push_back(static_cast<std::uint8_t>(i * 37 % 256));
  return bytes;
}

Bytes augmented(const AugmentOptions& options, std::uint32_t sample, std::uint32_t epoch) {
  Bytes bytes = ramp(12 * 10 * 3), scratch;
  augment(options, sample, epoch, {.bytes = bytes, .height = 12, .width = 10, .channels = 3, .scratch = scratch});
  return bytes;
}

/// What is drawn is applied, in the order that is drawn; what is off is not.
TEST(Augment, DoesWhatIsDrawnForJitter) {
  const ColourJitter all{.brightness = 0.4, .contrast = 0.4, .saturation = 0.4, .hue = 0.1};
  const ColourJitter some{.contrast = 0.4, .hue = 0.1};
  for (const ColourJitter& colours : {all, some})
    for (std::uint32_t sample = 0; sample < 50; ++sample) {
      Bytes expected = ramp(360);
      std::set<Change> kinds;
      for (const DrawnChange& c : draw_jitter(colours, 3, sample, 5)) {
        expected = changed(c.change, c.strength, expected, 12, 10, 3);
        kinds.insert(c.change);
      }
      EXPECT_EQ(augmented({.colours = colours, .seed = 3}, sample, 5), expected);
      const bool is_on = colours.brightness > 0;
      EXPECT_EQ(kinds.contains(Change::brightness), is_on);
      EXPECT_EQ(kinds.contains(Change::identity), !is_on);
    }
}

/// The result depends on seed, sample and epoch only, and differs for each of them.
TEST(Augment, IsAFunctionOfSampleAndEpoch) {
  for (const AugmentOptions& options : {AugmentOptions{.trivial_augment = true, .seed = 3},
                                        AugmentOptions{.colours = {.brightness = 0.4, .hue = 0.1}, .seed = 3}}) {
    int n_of_epoch = 0, n_of_seed = 0, n_changed = 0;
    for (std::uint32_t sample = 0; sample < 100; ++sample) {
      const Bytes once = augmented(options, sample, 1);
      EXPECT_EQ(augmented(options, sample, 1), once);
      AugmentOptions other = options;
      other.seed = 4;
      n_changed += once != ramp(360) ? 1 : 0;
      n_of_epoch += augmented(options, sample, 2) != once ? 1 : 0;
      n_of_seed += augmented(other, sample, 1) != once ? 1 : 0;
    }
    EXPECT_GT(n_changed, 80);
    EXPECT_GT(n_of_epoch, 85);
    EXPECT_GT(n_of_seed, 85);
  }
  EXPECT_EQ(augmented({}, 5, 1), ramp(360));
}

/// On a grey image the brightness factor is visible: it is uniform in its range.
TEST(Augment, JittersWithinItsRanges) {
  const AugmentOptions options{.colours = {.brightness = 0.5}, .seed = 1};
  double least = 9, greatest = 0, sum = 0;
  constexpr int kSamples = 2000;
  for (std::uint32_t sample = 0; sample < kSamples; ++sample) {
    Bytes bytes{100, 100, 100}, scratch;
    augment(options, sample, 0, {.bytes = bytes, .height = 1, .width = 1, .channels = 3, .scratch = scratch});
    const double factor = bytes[0] / 100.0;
    least = std::min(least, factor);
    greatest = std::max(greatest, factor);
    sum += factor;
  }
  EXPECT_GE(least, 0.49);  // truncated to integers
  EXPECT_LE(least, 0.51);
  EXPECT_GE(greatest, 1.48);
  EXPECT_LE(greatest, 1.5);
  EXPECT_NEAR(sum / kSamples, 0.995, 0.03);  // a standard deviation of 0.29 / sqrt(2000)
}

/// Labels, sample numbers and everything else are those of the underlying set.
TEST(Augment, ChangesOnlyTheImagesOfASet) {
  const auto plain = make_synthetic_set(1, 40, 8, 8, 3, 10, "train", 7);
  const auto set =
      augment_image_set(make_synthetic_set(1, 40, 8, 8, 3, 10, "train", 7), {.trivial_augment = true, .seed = 2});
  EXPECT_EQ(set->classes(), plain->classes());
  EXPECT_GT(set->info().reader_bytes, plain->info().reader_bytes);
  int n_changed = 0;
  for (std::int64_t sample = 0; sample < 40; ++sample) {
    Bytes before(192), after(192), expected(192), scratch;
    std::int32_t label = -5, augmented_label = -6;
    plain->read_image(sample, 3, before, label);
    set->read_image(sample, 3, after, augmented_label);
    EXPECT_EQ(label, augmented_label);
    expected = before;
    augment({.trivial_augment = true, .seed = 2}, static_cast<std::uint32_t>(7 + sample), 3,
            {.bytes = expected, .height = 8, .width = 8, .channels = 3, .scratch = scratch});
    EXPECT_EQ(after, expected);
    n_changed += after != before ? 1 : 0;
  }
  EXPECT_GT(n_changed, 25);
}

/// A set whose images take `delay` to read.
class SlowSet final : public ImageSet {
 public:
  explicit SlowSet(std::chrono::milliseconds delay) : delay_(delay) {
    info_.n_samples = 4;
    info_.height = info_.width = 64;
    info_.channels = 3;
  }
  const ImageSetInfo& info() const override { return info_; }
  void read_image(std::int64_t, std::uint32_t, std::span<std::uint8_t> image, std::int32_t&) const override {
    std::this_thread::sleep_for(delay_);
    std::memset(image.data(), 100, image.size());
  }
  ReaderWork reader_work() const override { return {.decodes = true}; }
  std::vector<std::string> faster_reading() const override { return {"--store decoded"}; }

 private:
  std::chrono::milliseconds delay_;
  ImageSetInfo info_;
};

std::vector<std::string> advice_after_reading(std::chrono::milliseconds delay, const AugmentOptions& options) {
  const auto set = augment_image_set(std::make_unique<SlowSet>(delay), options);
  Bytes image(std::size_t{64} * 64 * 3);
  std::int32_t label = 0;
  for (int sample = 0; sample < 4; ++sample) set->read_image(sample, 0, image, label);
  return set->faster_reading();
}

TEST(Augment, AdvisesOnWhatTakesMostOfTheTime) {
  const AugmentOptions trivial{.trivial_augment = true, .seed = 1},
      jitter{.colours = {.brightness = 0.4, .contrast = 0.4, .saturation = 0.4, .hue = 0.1}, .seed = 1};
  using Advice = std::vector<std::string>;
  using std::chrono::milliseconds;
  EXPECT_EQ(advice_after_reading(milliseconds(50), jitter), (Advice{"--store decoded"}));
  EXPECT_EQ(advice_after_reading(milliseconds(0), jitter),
            (Advice{"a smaller data.image_size", "no data.color_jitter"}));
  EXPECT_EQ(advice_after_reading(milliseconds(0), trivial),
            (Advice{"a smaller data.image_size", "data.augment without trivial_augment"}));
}

TEST(Augment, IsPartOfTheWorkOfReaders) {
  const auto work = [](const AugmentOptions& options) {
    return augment_image_set(std::make_unique<SlowSet>(std::chrono::milliseconds(0)), options)->reader_work();
  };
  const ReaderWork trivial = work({.trivial_augment = true, .seed = 1}), jitter = work({.colours = {.hue = 0.1}});
  EXPECT_TRUE(trivial.decodes && jitter.decodes);
  EXPECT_EQ(trivial.trivial_augment_pixels, 64 * 64);
  EXPECT_EQ(trivial.color_jitter_pixels, 0);
  EXPECT_EQ(jitter.trivial_augment_pixels, 0);
  EXPECT_EQ(jitter.color_jitter_pixels, 64 * 64);
  EXPECT_EQ(jitter.resized_pixels, 0) << "the rate of decoding includes it";
}

}  // namespace
}  // namespace lockstep::data

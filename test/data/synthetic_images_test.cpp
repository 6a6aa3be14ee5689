// The synthetic set: it depends only on seed, split and sample, and can be learned.
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "data/image_set.h"
#include "test/data/files.h"

namespace lockstep::data {
namespace {

std::vector<std::uint8_t> image_of(const ImageSet& set, std::int64_t sample) {
  std::vector<std::uint8_t> image(set.info().image_bytes());
  std::int32_t label = -1;
  set.read_image(sample, 0, image, label);
  EXPECT_EQ(label, sample % set.info().classes);
  return image;
}

double distance(const std::vector<double>& a, const std::vector<std::uint8_t>& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += (a[i] - b[i]) * (a[i] - b[i]);
  return sum;
}

TEST(SyntheticSet, IsAFunctionOfSeedSplitAndSample) {
  const auto set = make_synthetic_set(1, 100, 9, 7, 3, 10, "train");
  const auto image = image_of(*set, 42);
  EXPECT_EQ(image, image_of(*make_synthetic_set(1, 1000, 9, 7, 3, 10, "train"), 42));
  EXPECT_NE(image, image_of(*set, 52));
  EXPECT_NE(image, image_of(*make_synthetic_set(2, 100, 9, 7, 3, 10, "train"), 42));
  EXPECT_NE(image, image_of(*make_synthetic_set(1, 100, 9, 7, 3, 10, "test"), 42));
  const auto range = make_synthetic_set(1, 10, 9, 7, 3, 10, "train", /*first_sample=*/40);
  EXPECT_EQ(image, image_of(*range, 2)) << "sample 0 of the range is sample 40 of all";
  EXPECT_EQ(range->info().first_sample, 40);
  EXPECT_ERROR(ErrorCode::data_range, "is not possible", make_synthetic_set(1, 0, 9, 7, 3, 10, "train"));
}

// The mean image of each class, over 20 train images, classifies all test images: the splits share the pattern.
TEST(SyntheticSet, CanBeLearned) {
  constexpr int kClasses = 10;
  const auto train = make_synthetic_set(3, 200, 16, 16, 3, kClasses, "train");
  const auto test = make_synthetic_set(3, 100, 16, 16, 3, kClasses, "test");
  std::vector<std::vector<double>> means(kClasses, std::vector<double>(train->info().image_bytes(), 0.0));
  for (std::int64_t i = 0; i < 200; ++i) {
    const auto image = image_of(*train, i);
    for (std::size_t j = 0; j < image.size(); ++j) means[static_cast<std::size_t>(i % kClasses)][j] += image[j] / 20.0;
  }
  for (std::int64_t i = 0; i < 100; ++i) {
    const auto image = image_of(*test, i);
    int best = 0;
    for (int k = 1; k < kClasses; ++k)
      if (distance(means[static_cast<std::size_t>(k)], image) < distance(means[static_cast<std::size_t>(best)], image))
        best = k;
    EXPECT_EQ(best, i % kClasses);
  }
}

// Over many classes, the pixels have the mean and standard deviation that info() reports: a random pattern of 200
// classes x 64 cells x 3 channels gives a standard error of 0.001.
TEST(SyntheticSet, HasTheStatisticsThatItReports) {
  const auto set = make_synthetic_set(4, 200, 16, 16, 3, 200, "train");
  double sum = 0, squares = 0, n = 0;
  for (std::int64_t i = 0; i < 200; ++i)
    for (const std::uint8_t v : image_of(*set, i)) sum += v / 255.0, squares += v * v / 65025.0, n += 1;
  EXPECT_NEAR(sum / n, set->info().mean[0], 0.005);
  EXPECT_NEAR(std::sqrt(squares / n - sum * sum / n / n), set->info().stddev[0], 0.005);
}

}  // namespace
}  // namespace lockstep::data

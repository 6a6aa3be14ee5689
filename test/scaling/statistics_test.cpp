// Means, spreads, intervals, modes, and the criterion for a warm-up.
#include "scaling/measurement.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace lockstep::scaling {
namespace {

TEST(ScalingFigure, HasMeanSpreadAndInterval) {
  const std::vector<double> values{2, 4, 4, 4, 5, 5, 7, 9};
  const Figure figure = figure_of(values);
  EXPECT_EQ(figure.n, 8);
  EXPECT_DOUBLE_EQ(figure.mean, 5);
  EXPECT_EQ(figure.minimum, 2);
  EXPECT_EQ(figure.maximum, 9);
  EXPECT_NEAR(figure.deviation, std::sqrt(32.0 / 7), 1e-12);
  EXPECT_NEAR(figure.half_width, 2.364624 * std::sqrt(32.0 / 7 / 8), 1e-6);
}

TEST(ScalingFigure, OfOneValueHasNoInterval) {
  const Figure figure = figure_of(std::vector<double>{3, kUnknown});
  EXPECT_EQ(figure.n, 1);
  EXPECT_EQ(figure.mean, 3);
  EXPECT_TRUE(std::isnan(figure.deviation));
  EXPECT_TRUE(std::isnan(figure.half_width));
  EXPECT_EQ(figure_of(std::vector<double>{}).n, 0);
}

// With two values, Student's t is 12.7, so that an interval would say less than the two values.
TEST(ScalingFigure, OfTwoValuesHasSpreadButNoInterval) {
  const Figure figure = figure_of(std::vector<double>{1, 2});
  EXPECT_DOUBLE_EQ(figure.deviation, std::sqrt(0.5));
  EXPECT_TRUE(std::isnan(figure.half_width) && std::isnan(figure.low()) && std::isnan(figure.high()));
}

TEST(ScalingFigure, HasAnIntervalBelowZeroOnlyIfAValueIs) {
  EXPECT_EQ(figure_of(std::vector<double>{0, 0, 1}).low(), 0);
  EXPECT_LT(figure_of(std::vector<double>{-1, 0, 1}).low(), -1);
  const Figure narrow = figure_of(std::vector<double>{9, 10, 11});
  EXPECT_DOUBLE_EQ(narrow.low() + narrow.high(), 20);
}

// Quantiles as in the tables of textbooks.
TEST(StudentT, HasTheQuantilesOfTheTables) {
  EXPECT_NEAR(student_t(1), 12.7062, 1e-4);
  EXPECT_NEAR(student_t(2), 4.30265, 1e-5);
  EXPECT_NEAR(student_t(3), 3.18245, 1e-5);
  EXPECT_NEAR(student_t(4), 2.77645, 1e-5);
  EXPECT_NEAR(student_t(9), 2.26216, 1e-5);
  EXPECT_NEAR(student_t(30), 2.04227, 1e-5);
  EXPECT_NEAR(student_t(1e9), 1.95996, 1e-3);
  EXPECT_EQ(student_t(2.9), student_t(2));
  EXPECT_EQ(student_t(0.5), student_t(1));
}

TEST(ScalingRatio, PropagatesTheErrorsOfBoth) {
  const Figure a = figure_of(std::vector<double>{190, 200, 210}), b = figure_of(std::vector<double>{95, 100, 105});
  const Figure ratio = ratio_of(a, b);
  EXPECT_DOUBLE_EQ(ratio.mean, 2);
  EXPECT_DOUBLE_EQ(ratio.minimum, 1.9);
  EXPECT_DOUBLE_EQ(ratio.maximum, 2.1);
  // Both have a relative standard error of 5 % / sqrt(3), and together 4 degrees of freedom.
  EXPECT_NEAR(ratio.half_width, 2.776445 * 2 * 0.05 * std::sqrt(2.0 / 3), 1e-6);
  EXPECT_TRUE(std::isnan(ratio_of(figure_of(std::vector<double>{1}), b).half_width));
  EXPECT_EQ(ratio_of(a, Figure()).n, 0);
  EXPECT_TRUE(std::isnan(ratio_of(a, figure_of(std::vector<double>{95, 105})).half_width));
  EXPECT_EQ(ratio_of(figure_of(std::vector<double>{4, 4, 4}), figure_of(std::vector<double>{2, 2, 2})).half_width, 0);
  EXPECT_DOUBLE_EQ(scaled(ratio, 0.5).mean, 1);
  EXPECT_DOUBLE_EQ(scaled(ratio, 0.5).maximum, 1.05);
}

TEST(ScalingMode, IsTheSmallestOfTheMostFrequent) {
  EXPECT_EQ(mode_of(std::vector<double>{5, 3, 3, 5, 1}), 3);
  EXPECT_TRUE(std::isnan(mode_of(std::vector<double>{})));
}

TEST(ScalingWarmup, IsOverWhenTheTimesNoLongerFall) {
  EXPECT_TRUE(still_falls(std::vector<double>{3, 2.9, 2.8, 1, 1.1, 1, 0.9, 1, 1}));
  EXPECT_FALSE(still_falls(std::vector<double>{1.05, 1.04, 1.05, 1, 1, 1, 1, 1, 1})) << "less than 10 %";
  EXPECT_FALSE(still_falls(std::vector<double>{1, 4, 1, 1, 3, 1, 1, 2, 1})) << "single slow steps are noise";
  EXPECT_FALSE(still_falls(std::vector<double>{1, 1, 1, 3, 3, 3, 3, 3, 3})) << "it became slower";
  EXPECT_FALSE(still_falls(std::vector<double>{9, 1, 1, 1, 1})) << "too few values";
}

}  // namespace
}  // namespace lockstep::scaling

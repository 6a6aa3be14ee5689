// The quantiles of Beta(alpha, alpha), compared with closed forms and moments.
#include "layers/layers.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "lockstep/ops/mix_images.h"

namespace lockstep::layers {
namespace {

double probability(std::size_t i) { return (static_cast<double>(i) + 0.5) / kBetaQuantiles; }

TEST(BetaQuantiles, HaveTheirClosedForms) {
  const std::vector<float> arcsine = beta_quantiles(0.5), uniform = beta_quantiles(1), parabola = beta_quantiles(2);
  for (std::size_t i = 0; i < kBetaQuantiles; ++i) {
    const double p = probability(i), x = parabola[i];
    ASSERT_NEAR(arcsine[i], std::pow(std::sin(p * std::numbers::pi / 2), 2), 1e-6) << i;
    ASSERT_NEAR(uniform[i], p, 1e-6) << i;
    ASSERT_NEAR(3 * x * x - 2 * x * x * x, p, 1e-6) << i;
  }
}

/// The variance of Beta(a, a) is 1 / (4 (2 a + 1)); the variance of the table is a sum over 4096 cells.
TEST(BetaQuantiles, HaveTheirMomentsAndSymmetry) {
  for (const double alpha : {0.05, 0.2, 0.4, 1.0, 3.0, 10.0}) {
    const std::vector<float> q = beta_quantiles(alpha);
    ASSERT_EQ(q.size(), kBetaQuantiles);
    EXPECT_TRUE(std::ranges::is_sorted(q)) << alpha;
    double variance = 0;
    for (std::size_t i = 0; i < q.size(); ++i) {
      variance += (q[i] - 0.5) * (q[i] - 0.5) / kBetaQuantiles;
      EXPECT_NEAR(q[i] + q[q.size() - 1 - i], 1, 1e-6) << alpha;
      EXPECT_TRUE(q[i] >= 0 && q[i] <= 1) << alpha;
    }
    EXPECT_NEAR(variance, 1 / (4 * (2 * alpha + 1)), 1e-4) << alpha;
  }
}

}  // namespace
}  // namespace lockstep::layers

#include "graph/parameters.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

namespace lockstep {
namespace {

TEST(FillNormal, ReturnsTheNumbersOfPhilox) {
  for (std::size_t n : {1u, 2u, 511u, 512u, 513u, 200000u}) {
    const Philox random(7, RandomPurpose::weights, name_hash("layer1.0.conv1.weight"), 0);
    std::vector<float> values(n);
    graph::fill_normal(random, 0.05, 0, values);
    std::size_t different = 0;
    for (std::size_t i = 0; i < n; ++i) {
      const double exact = 0.05 * random.normal(i);
      // Rounded once to fp32; near a multiple of pi/2 the two differ by one ulp of the angle, in absolute terms.
      ASSERT_NEAR(values[i], exact, 6e-8 * std::abs(exact) + 1e-16) << i;
      different += values[i] != static_cast<float>(exact) ? 1 : 0;
    }
    // Two results that differ by one or two ulp of fp64 round to different fp32 about once in 2^28 numbers.
    EXPECT_LE(different, 1u);
    for (std::size_t first : {1u, 2u, 509u, 512u}) {
      if (first >= n) continue;
      std::vector<float> rest(n - first);
      graph::fill_normal(random, 0.05, first, rest);
      EXPECT_TRUE(std::equal(rest.begin(), rest.end(), values.begin() + static_cast<std::ptrdiff_t>(first))) << first;
    }
  }
}

}  // namespace
}  // namespace lockstep

// Gradients, compared with central finite differences of a function evaluated in double.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

namespace lockstep::test {

/// `gradient[i]` is d loss() / d values[i]; `loss` reads `values`. At most about 20 elements are tested, evenly spread.
/// With the step h = 1e-5 and a loss of order 1 to 100, cancellation contributes an error of about 1e-9 (100 * 2^-53 /
/// h) and the third derivative about h^2 = 1e-10. The tolerance of 1e-7 of the maximum gradient (of order 1 here) is
/// well above that, and well below any wrong term. Inputs must stay further than h from kinks (a ReLU at 0, equal
/// maxima).
template <typename Loss>
testing::AssertionResult gradient_matches(std::vector<double>& values, const std::vector<double>& gradient, Loss&& loss,
                                          double tolerance = 1e-7) {
  constexpr double kStep = 1e-5;
  if (values.empty() || values.size() != gradient.size())
    return testing::AssertionFailure() << values.size() << " values, " << gradient.size() << " gradients";
  double greatest = 1.0;
  for (double g : gradient) greatest = std::max(greatest, std::abs(g));
  const std::size_t stride = std::max<std::size_t>(1, values.size() / 20);
  for (std::size_t i = 0; i < values.size(); i += stride) {
    const double value = values[i];
    values[i] = value + kStep;
    const double above = loss();
    values[i] = value - kStep;
    const double below = loss();
    values[i] = value;
    const double difference = (above - below) / (2 * kStep);
    if (!(std::abs(difference - gradient[i]) <= tolerance * greatest))
      return testing::AssertionFailure() << "element " << i << ": gradient " << gradient[i] << ", finite difference "
                                         << difference;
  }
  return testing::AssertionSuccess();
}

inline double dot(const std::vector<double>& a, const std::vector<double>& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

}  // namespace lockstep::test

// How results are compared.
//
// within_rounding: the forward error bound of floating-point sums (Higham, "Accuracy and Stability of Numerical
// Algorithms", 2nd ed., section 3.1): a chain of n operations on numbers a_i gives an error of at most
// n * u * sum |a_i| to first order, whatever their order. `magnitude` is that sum, which the reference computes with
// the same formula over absolute values; `n_operations` is the length of the longest chain. No bound is tuned: a result
// outside it is wrong, and a missing or doubled term (1/n of the sum) is far outside.
//
// near: relative to the largest magnitude, where a bound for each element would not be stricter.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

namespace lockstep::test {

/// Unit roundoff of fp32, bf16 and fp16.
inline constexpr double kRoundoff = 0x1p-24, kBf16Roundoff = 0x1p-8, kFp16Roundoff = 0x1p-11;

template <typename A, typename B, typename C>
testing::AssertionResult within_rounding(const std::vector<A>& actual, const std::vector<B>& expected,
                                         const std::vector<C>& magnitude, double n_operations) {
  if (actual.size() != expected.size() || magnitude.size() != expected.size())
    return testing::AssertionFailure() << "sizes " << actual.size() << ", " << expected.size() << ", "
                                       << magnitude.size();
  double worst = 0;
  std::size_t worst_at = 0;
  for (std::size_t i = 0; i < actual.size(); ++i) {
    const double error = std::abs(static_cast<double>(actual[i]) - static_cast<double>(expected[i]));
    const double bound = n_operations * kRoundoff * std::abs(static_cast<double>(magnitude[i]));
    // NaN is never within the bound. The smallest normal number is added because fp32 cannot distinguish smaller values
    // from zero.
    const double excess = std::isnan(error) ? INFINITY : error / std::max(bound, 1.2e-38);
    if (excess <= worst) continue;
    worst = excess;
    worst_at = i;
  }
  if (worst <= 1.0) return testing::AssertionSuccess();
  return testing::AssertionFailure() << "element " << worst_at << " of " << actual.size() << " is " << actual[worst_at]
                                     << ", expected " << expected[worst_at] << ": " << worst
                                     << " times the error that rounding explains";
}

/// The maximum error is at most `tolerance` times the maximum expected magnitude.
template <typename A, typename B>
testing::AssertionResult near(const std::vector<A>& actual, const std::vector<B>& expected, double tolerance) {
  if (actual.size() != expected.size())
    return testing::AssertionFailure() << "sizes " << actual.size() << ", " << expected.size();
  double greatest = 0;
  for (const B& value : expected) greatest = std::max(greatest, std::abs(static_cast<double>(value)));
  for (std::size_t i = 0; i < actual.size(); ++i)
    if (!(std::abs(static_cast<double>(actual[i]) - static_cast<double>(expected[i])) <= tolerance * greatest))
      return testing::AssertionFailure() << "element " << i << " is " << actual[i] << ", expected " << expected[i]
                                         << " within " << tolerance * greatest;
  return testing::AssertionSuccess();
}

}  // namespace lockstep::test

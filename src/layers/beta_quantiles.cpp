#include "layers/beta_quantiles.h"

#include <cmath>
#include <cstddef>

#include "lockstep/ops/mix_images.h"

namespace lockstep::layers {
namespace {

/// The distribution function of Beta(a, a) at x in [0, 1/2], by the power series of the incomplete beta function
/// (Abramowitz and Stegun, "Handbook of Mathematical Functions", 26.5.4, in the form of Gauss's hypergeometric series):
///     I_x(a, a) = x^a (1 - x)^a / (a B(a, a)) * sum_n x^n prod_(i = 1..n) (2 a + i - 1) / (a + i)
/// Its terms decrease at least as fast as 2^-n in the end.
double distribution(double x, double a) {
  if (x <= 0) return 0;
  const double log_beta = 2 * std::lgamma(a) - std::lgamma(2 * a);
  double term = 1, sum = 1;
  for (int n = 1; n < 1000 && term > 1e-17 * sum; ++n) {
    term *= x * (2 * a + n - 1) / (a + n);
    sum += term;
  }
  return std::exp(a * (std::log(x) + std::log1p(-x)) - log_beta) / a * sum;
}

}  // namespace

std::vector<float> beta_quantiles(double alpha) {
  std::vector<float> quantiles(kBetaQuantiles);
  const std::size_t n = quantiles.size();
  for (std::size_t i = 0; i < n / 2; ++i) {
    const double p = (static_cast<double>(i) + 0.5) / static_cast<double>(n);
    // Bisects the logarithm: with a small alpha, most quantiles are far below the spacing of doubles around 1.
    double low = -700, high = std::log(0.5);
    for (int step = 0; step < 60; ++step) {
      const double middle = 0.5 * (low + high);
      (distribution(std::exp(middle), alpha) < p ? low : high) = middle;
    }
    quantiles[i] = static_cast<float>(std::exp(high));
    quantiles[n - 1 - i] = static_cast<float>(1.0 - std::exp(high));
  }
  return quantiles;
}

}  // namespace lockstep::layers

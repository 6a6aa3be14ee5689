#include "scaling/statistics.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numbers>
#include <vector>

namespace lockstep::scaling {
namespace {

/// P(|T| < t) for whole degrees of freedom (Abramowitz and Stegun, 26.7.3 and 26.7.4).
double central_probability(double t, int degrees) {
  const double theta = std::atan(t / std::sqrt(static_cast<double>(degrees))), cosine = std::cos(theta);
  const bool is_odd = degrees % 2 == 1;
  double term = is_odd ? cosine : 1, sum = degrees > 1 ? term : 0;
  for (int i = is_odd ? 3 : 2; i <= degrees - 2; i += 2) {
    term *= cosine * cosine * (i - 1) / i;
    sum += term;
  }
  return is_odd ? 2 / std::numbers::pi * (theta + std::sin(theta) * sum) : std::sin(theta) * sum;
}

double squared_standard_error(const Figure& figure) { return figure.deviation * figure.deviation / figure.n; }

}  // namespace

Figure figure_of(std::span<const double> values) {
  std::vector<double> finite;
  std::ranges::copy_if(values, std::back_inserter(finite), [](double value) { return std::isfinite(value); });
  Figure figure;
  if (finite.empty()) return figure;
  figure.n = static_cast<int>(finite.size());
  figure.minimum = *std::ranges::min_element(finite);
  figure.maximum = *std::ranges::max_element(finite);
  figure.mean = 0;
  for (const double value : finite) figure.mean += value / figure.n;
  if (figure.n < 2) return figure;
  double squares = 0;
  for (const double value : finite) squares += (value - figure.mean) * (value - figure.mean);
  figure.deviation = std::sqrt(squares / (figure.n - 1));
  if (figure.n < kLeastForInterval) return figure;
  figure.half_width = student_t(figure.n - 1) * std::sqrt(squared_standard_error(figure));
  return figure;
}

double student_t(double degrees_of_freedom) {
  constexpr int kMostDegrees = 10000;  // from here on, the normal distribution differs only in the fifth digit
  const int degrees = static_cast<int>(std::clamp(std::floor(degrees_of_freedom), 1.0, double{kMostDegrees}));
  double low = 1.9, high = 12.8;  // the quantile is 12.706 for one degree of freedom, and falls to 1.960
  for (int i = 0; i < 60; ++i) {
    const double middle = (low + high) / 2;
    (central_probability(middle, degrees) < 0.95 ? low : high) = middle;
  }
  // The last bits of sines and arc tangents differ between processors, but reports must not differ.
  constexpr double kDigits = 1e9;
  return std::round((low + high) / 2 * kDigits) / kDigits;
}

Figure ratio_of(const Figure& numerator, const Figure& denominator) {
  Figure ratio;
  if (numerator.n == 0 || denominator.n == 0 || denominator.mean == 0) return ratio;
  ratio.n = numerator.n;
  ratio.mean = numerator.mean / denominator.mean;
  ratio.minimum = numerator.minimum / denominator.mean;
  ratio.maximum = numerator.maximum / denominator.mean;
  ratio.deviation = numerator.deviation / denominator.mean;
  if (std::min(numerator.n, denominator.n) < kLeastForInterval) return ratio;
  const double a = squared_standard_error(numerator) / (numerator.mean * numerator.mean);
  const double b = squared_standard_error(denominator) / (denominator.mean * denominator.mean);
  const double variances = a + b;
  ratio.half_width = 0;
  if (variances == 0) return ratio;
  const double degrees = variances * variances / (a * a / (numerator.n - 1) + b * b / (denominator.n - 1));
  ratio.half_width = student_t(degrees) * ratio.mean * std::sqrt(variances);
  return ratio;
}

Figure scaled(const Figure& figure, double factor) {
  Figure result = figure;
  for (double Figure::*member :
       {&Figure::mean, &Figure::minimum, &Figure::maximum, &Figure::deviation, &Figure::half_width})
    result.*member *= factor;
  return result;
}

double mode_of(std::span<const double> values) {
  std::map<double, int> counts;
  for (const double value : values)
    if (std::isfinite(value)) ++counts[value];
  double mode = kUnknown;
  int most = 0;
  for (const auto& [value, count] : counts) {
    if (count <= most) continue;
    most = count;
    mode = value;
  }
  return mode;
}

bool still_falls(std::span<const double> values) {
  constexpr std::size_t kLeast = 6;
  constexpr double kPart = 0.1, kStandardErrors = 3;
  if (values.size() < kLeast) return false;
  const std::size_t third = values.size() / 3;
  const Figure first = figure_of(values.first(third)), rest = figure_of(values.subspan(third));
  const double difference = first.mean - rest.mean;
  const double error = std::sqrt(squared_standard_error(first) + squared_standard_error(rest));
  return difference > kPart * rest.mean && difference > kStandardErrors * error;
}

}  // namespace lockstep::scaling

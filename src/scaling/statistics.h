// Figures of repeated measurements: mean, spread, and the 95 % confidence interval of the mean by Student's t
// distribution, which assumes that the repeats are independent and normally distributed. One value has no interval, nor
// have two: theirs would be 12.7 standard errors wide to each side, and thus tell nothing.
#pragma once

#include <limits>
#include <span>

namespace lockstep::scaling {

inline constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();

inline constexpr int kLeastForInterval = 3;

struct Figure {
  int n = 0;  // values; 0: all other members are kUnknown
  double mean = kUnknown, minimum = kUnknown, maximum = kUnknown;
  double deviation = kUnknown;   // of the sample, with n - 1; kUnknown for one value
  double half_width = kUnknown;  // of the interval of the mean; kUnknown for fewer than kLeastForInterval values
  /// The ends of the interval, which is not negative if no value is.
  double low() const { return minimum >= 0 && half_width > mean ? 0 : mean - half_width; }
  double high() const { return mean + half_width; }
};

/// Values that are not finite are left out.
Figure figure_of(std::span<const double> values);

/// The quantile of Student's t distribution at 0.975. Degrees of freedom that are not whole are rounded down, which
/// makes the interval wider. At least 1.
double student_t(double degrees_of_freedom);

/// numerator / denominator of two independent figures. The interval is that of first-order propagation of the standard
/// errors, with the degrees of freedom of Welch and Satterthwaite. The spread is that of the values of the numerator,
/// divided by the mean of the denominator.
Figure ratio_of(const Figure& numerator, const Figure& denominator);
/// Each value multiplied by `factor`, which is positive.
Figure scaled(const Figure& figure, double factor);

/// The value that occurs most often, or the smallest of several; kUnknown if there is none.
double mode_of(std::span<const double> values);

/// Whether the values still fall: the mean of the first third is greater than that of the others by more than 10 %, and
/// by more than three standard errors of the difference. With fewer than six values, the result is false.
bool still_falls(std::span<const double> values);

}  // namespace lockstep::scaling

// The numbers on an axis: which ones are marked, and how they are written.
//
// The distance of linear ticks is 1, 2 or 5 times a power of ten. Logarithmic ticks are powers of ten, with 2 and 5
// times a power in between where the axis is short.
#pragma once

#include <string>
#include <vector>

namespace lockstep::page {

/// The smallest 1, 2 or 5 times a power of ten that divides `span` into at most `max_intervals` parts. `span` > 0.
double tick_distance(double span, int max_intervals);

/// The multiples of tick_distance() within [low, high]; with `whole`, only whole numbers. At least one tick.
std::vector<double> linear_ticks(double low, double high, int max_count, bool whole = false);
/// 0 < low < high. The powers of ten within the range, thinned to `max_count`; linear ticks if the range has none.
std::vector<double> logarithmic_ticks(double low, double high, int max_count);

/// The ticks as texts, all with the same number of decimals: "0.5" and "1.0", "12,000", "2e7".
std::vector<std::string> tick_texts(const std::vector<double>& ticks);
/// A value with `digits` significant digits, without an exponent where it is easy to read: "12,345", "0.0021".
std::string value_text(double value, int digits = 4);

}  // namespace lockstep::page

#include "page/ticks.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/numbers.h"

namespace lockstep::page {
namespace {

constexpr double kRounding = 1e-9;  // relative tolerance: quotients of decimal fractions are not exact

/// "2.5e-4" and "1e8", but "0.02" and "2000".
std::string with_exponent(double value, int digits) {
  const std::string text = fmt::format("{:.{}e}", value, digits - 1);  // "2.500e-04"
  const auto e = text.find('e');
  const int exponent = std::stoi(text.substr(e + 1));
  if (value == 0 || (exponent >= -2 && exponent <= 3)) return fmt::format("{:.{}g}", value, digits);
  std::string mantissa = text.substr(0, e);
  if (mantissa.find('.') != std::string::npos) mantissa.erase(mantissa.find_last_not_of('0') + 1);
  if (mantissa.ends_with('.')) mantissa.pop_back();
  return fmt::format("{}e{}", mantissa, exponent);
}

/// The number of decimals for numbers with this distance between neighbours.
int decimals_of(double distance) {
  int decimals = 0;
  for (; decimals < 9; ++decimals) {
    const double scaled = distance * std::pow(10.0, decimals);
    if (std::abs(scaled - std::round(scaled)) < kRounding * std::max(1.0, scaled)) break;
  }
  return decimals;
}

std::string fixed(double value, int decimals) {
  if (value == 0) value = 0;  // no "-0"
  if (decimals > 0) return fmt::format("{:.{}f}", value, decimals);
  return value < 0 ? "-" + with_commas(-value) : with_commas(value);
}

}  // namespace

double tick_distance(double span, int max_intervals) {
  const double least = span / std::max(1, max_intervals);
  const double power = std::pow(10.0, std::floor(std::log10(least)));
  for (const double factor : {1.0, 2.0, 5.0})
    if (factor * power >= least * (1 - kRounding)) return factor * power;
  return 10 * power;
}

std::vector<double> linear_ticks(double low, double high, int max_count, bool whole) {
  if (!(high > low)) return {low};
  double distance = tick_distance(high - low, std::max(1, max_count - 1));
  if (whole) distance = std::max(1.0, distance);
  std::vector<double> ticks;
  const double first = std::ceil(low / distance - kRounding);
  // Neighbouring multiples of large numbers may be equal, because a double has no more digits.
  for (int i = 0; i <= max_count; ++i) {
    const double tick = (first + i) * distance + 0.0;  // no -0
    if (!(tick <= high + kRounding * distance) || (!ticks.empty() && tick <= ticks.back())) break;
    ticks.push_back(tick);
  }
  if (ticks.empty()) ticks.push_back(whole ? std::round(low) : low);
  return ticks;
}

std::vector<double> logarithmic_ticks(double low, double high, int max_count) {
  const int first = static_cast<int>(std::ceil(std::log10(low) - kRounding));
  const int last = static_cast<int>(std::floor(std::log10(high) + kRounding));
  const int n_powers = last - first + 1;
  std::vector<double> ticks;
  if (n_powers > 2) {
    const int every = (n_powers + max_count - 1) / std::max(1, max_count);
    for (int power = first; power <= last; power += every) ticks.push_back(std::pow(10.0, power));
    return ticks;
  }
  for (int power = first - 1; power <= last; ++power)
    for (const double factor : {1.0, 2.0, 5.0}) {
      const double tick = factor * std::pow(10.0, power);
      if (tick >= low * (1 - kRounding) && tick <= high * (1 + kRounding)) ticks.push_back(tick);
    }
  return ticks.size() < 2 ? linear_ticks(low, high, max_count) : ticks;
}

std::vector<std::string> tick_texts(const std::vector<double>& ticks) {
  double greatest = 0, least = INFINITY;  // the least value except zero
  int decimals = 0;
  for (const double tick : ticks) {
    greatest = std::max(greatest, std::abs(tick));
    if (tick != 0) least = std::min(least, std::abs(tick));
    decimals = std::max(decimals, decimals_of(std::abs(tick)));
  }
  const bool is_spread = least < INFINITY && greatest / least > 2e3;  // logarithmic
  const bool has_exponents = greatest >= 1e7 || (least < INFINITY && greatest < 1e-3) || (is_spread && decimals > 3);
  std::vector<std::string> texts;
  for (const double tick : ticks)
    texts.push_back(has_exponents ? with_exponent(tick, 4)
                                  : fixed(tick, is_spread ? decimals_of(std::abs(tick)) : decimals));
  return texts;
}

std::string value_text(double value, int digits) {
  if (!std::isfinite(value)) return "-";
  const double size = std::abs(value);
  if (value == 0) return "0";
  if (size >= 1e9 || size < 1e-4) return with_exponent(value, digits);
  const int before = static_cast<int>(std::floor(std::log10(size))) + 1;  // digits before the decimal point
  if (size >= 1000) return fixed(value, 0);
  std::string text = fmt::format("{:.{}f}", value, std::clamp(digits - before, 0, 8));
  if (text.find('.') == std::string::npos) return text;
  text.erase(text.find_last_not_of('0') + 1);
  if (text.ends_with('.')) text.pop_back();
  return text;
}

}  // namespace lockstep::page

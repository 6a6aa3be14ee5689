// Formats numbers for logs, so that they stay readable even if training diverges.
#pragma once

#include <fmt/format.h>

#include <cmath>
#include <string>

namespace lockstep {

/// With this many digits after the decimal point. From ten million on, "1e+30" instead of thirty digits. NaN
/// has no sign.
inline std::string fixed_text(double value, int digits) {
  constexpr double kGreatest = 1e7;
  if (std::isnan(value)) return "nan";
  return std::abs(value) < kGreatest ? fmt::format("{:.{}f}", value, digits) : fmt::format("{:.4g}", value);
}

/// The same with six digits, but "3e-07" if these would show only zeros.
inline std::string learning_rate_text(double value) {
  constexpr int kDigits = 6;
  const bool is_tiny = value != 0 && std::abs(value) < 1e-6;
  return is_tiny ? fmt::format("{:.3g}", value) : fixed_text(value, kDigits);
}

/// A count, with commas between thousands: "1,150".
inline std::string with_commas(double value) {
  std::string text = fmt::format("{:.0f}", value);
  for (std::size_t at = text.size(); at > 3; at -= 3) text.insert(at - 3, 1, ',');
  return text;
}

/// Floating-point operations per second: "85.2 GFLOP/s", "12.5 TFLOP/s".
inline std::string flops_rate_text(double rate) {
  const bool is_large = rate >= 1e12;
  return fmt::format("{:.3g} {}FLOP/s", rate / (is_large ? 1e12 : 1e9), is_large ? "T" : "G");
}

/// A number of things whose plural ends in s: "1 rank", "4 ranks".
template <typename Number>
std::string counted(Number n, const char* thing) {
  return fmt::format("{} {}{}", n, thing, n == 1 ? "" : "s");
}

}  // namespace lockstep

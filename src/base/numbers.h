// Numbers as text, which stays readable even if training diverges; sizes that users write; and the median.
#pragma once

#include <fmt/format.h>

#include <cmath>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

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

/// With three digits: "0.0337", "22.4", "24,100".
inline std::string three_digits(double number) {
  constexpr double kThousand = 999.5;
  return number < kThousand ? fmt::format("{:.3g}", number) : with_commas(number);
}

/// An example of such a size, for messages.
inline constexpr const char* kByteSizeExample = "a size such as 5GB, 500MB or 1GiB";

/// A size that a user writes: "5GB" is 5e9 bytes, as in save_pretrained() of transformers, and "5GiB" is 5 * 2^30
/// bytes. A number, which may have a fraction, and a unit: B, KB, MB, GB, TB (powers of 1,000), KiB, MiB, GiB or TiB
/// (powers of 1,024), in upper or lower case; blanks may separate the two. Empty if the text is something else, or if
/// the size is less than a byte or more than 2^62 bytes.
std::optional<std::uint64_t> parse_byte_size(std::string_view text);

/// "6.15 MB"
std::string size_text(std::uint64_t size_bytes);

/// A unit for values up to `greatest`, and the number by which values are divided: {1e-3, "ms"}, {1 << 20, "MiB"}.
struct Unit {
  double size = 1;
  std::string name;
};
Unit unit_of_seconds(double greatest);
Unit unit_of_bytes(double greatest);

/// "850 ms", "52.1 s", "17.5 min", "4.25 h"; "-" if it is not a duration.
std::string duration_text(double seconds);

/// The median of an odd or even number of values; 0 if there are none.
double median(std::vector<double> values);

}  // namespace lockstep

#include "base/numbers.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cmath>

namespace lockstep {
namespace {

struct Unit {
  std::string_view name;  // in lower case
  double bytes;
};
constexpr std::array kUnits{Unit{"b", 1},
                            Unit{"kb", 1e3},
                            Unit{"mb", 1e6},
                            Unit{"gb", 1e9},
                            Unit{"tb", 1e12},
                            Unit{"kib", 1024.0},
                            Unit{"mib", 1024.0 * 1024},
                            Unit{"gib", 1024.0 * 1024 * 1024},
                            Unit{"tib", 1024.0 * 1024 * 1024 * 1024}};
constexpr double kMostBytes = 4611686018427387904.0;  // 2^62

}  // namespace

std::optional<std::uint64_t> parse_byte_size(std::string_view text) {
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number, std::chars_format::fixed);
  if (error != std::errc() || !std::isfinite(number)) return std::nullopt;
  std::string unit(end, text.data() + text.size());
  unit.erase(0, std::min(unit.find_first_not_of(' '), unit.size()));
  std::ranges::transform(unit, unit.begin(), [](unsigned char c) { return std::tolower(c); });
  const auto found = std::ranges::find(kUnits, std::string_view(unit), &Unit::name);
  if (found == kUnits.end()) return std::nullopt;
  const double bytes = std::floor(number * found->bytes);
  if (!(bytes >= 1 && bytes <= kMostBytes)) return std::nullopt;
  return static_cast<std::uint64_t>(bytes);
}

std::string size_text(std::uint64_t size_bytes) {
  auto n = static_cast<double>(size_bytes);
  for (const char* unit : {"B", "kB", "MB", "GB"}) {
    if (n < 1000.0) return fmt::format("{:.3g} {}", n, unit);
    n /= 1000.0;
  }
  return fmt::format("{:.3g} TB", n);
}

std::string duration_text(double seconds) {
  if (!std::isfinite(seconds) || seconds < 0) return "-";
  const auto in = [&](double unit, const char* name) { return three_digits(seconds / unit) + " " + name; };
  if (seconds >= 7200) return in(3600, "h");
  if (seconds >= 300) return in(60, "min");
  if (seconds >= 1 || seconds == 0) return in(1, "s");
  return seconds >= 1e-3 ? in(1e-3, "ms") : in(1e-6, "us");
}

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::ranges::sort(values);
  const std::size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

}  // namespace lockstep

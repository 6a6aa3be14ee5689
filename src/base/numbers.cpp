#include "base/numbers.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cmath>

namespace lockstep {
namespace {

struct ByteUnit {
  std::string_view name;  // in lower case
  double bytes;
};
constexpr std::array kUnits{ByteUnit{"b", 1},
                            ByteUnit{"kb", 1e3},
                            ByteUnit{"mb", 1e6},
                            ByteUnit{"gb", 1e9},
                            ByteUnit{"tb", 1e12},
                            ByteUnit{"kib", 1024.0},
                            ByteUnit{"mib", 1024.0 * 1024},
                            ByteUnit{"gib", 1024.0 * 1024 * 1024},
                            ByteUnit{"tib", 1024.0 * 1024 * 1024 * 1024}};
constexpr double kMostBytes = 4611686018427387904.0;  // 2^62

}  // namespace

std::optional<std::uint64_t> parse_byte_size(std::string_view text) {
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number, std::chars_format::fixed);
  if (error != std::errc() || !std::isfinite(number)) return std::nullopt;
  std::string unit(end, text.data() + text.size());
  unit.erase(0, std::min(unit.find_first_not_of(' '), unit.size()));
  std::ranges::transform(unit, unit.begin(), [](unsigned char c) { return std::tolower(c); });
  const auto found = std::ranges::find(kUnits, std::string_view(unit), &ByteUnit::name);
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

Unit unit_of_seconds(double greatest) {
  if (greatest >= 7200) return {3600, "h"};
  if (greatest >= 300) return {60, "min"};
  if (greatest >= 1) return {1, "s"};
  return greatest >= 1e-3 ? Unit{1e-3, "ms"} : Unit{1e-6, "us"};
}

Unit unit_of_bytes(double greatest) {
  constexpr double kKiB = 1024, kMiB = 1024 * kKiB, kGiB = 1024 * kMiB;
  if (greatest >= 4 * kGiB) return {kGiB, "GiB"};
  return greatest >= 4 * kMiB ? Unit{kMiB, "MiB"} : Unit{kKiB, "KiB"};
}

std::string duration_text(double seconds) {
  if (!std::isfinite(seconds) || seconds < 0) return "-";
  const Unit unit = unit_of_seconds(seconds > 0 ? seconds : 1);
  return three_digits(seconds / unit.size) + " " + unit.name;
}

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::ranges::sort(values);
  const std::size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

}  // namespace lockstep

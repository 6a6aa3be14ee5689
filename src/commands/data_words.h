// How the commands of `lockstep data` describe data sets.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "data/image_set.h"

namespace lockstep::commands {

/// "6.15 MB"
inline std::string size_text(std::uint64_t size_bytes) {
  auto n = static_cast<double>(size_bytes);
  for (const char* unit : {"B", "kB", "MB", "GB"}) {
    if (n < 1000.0) return fmt::format("{:.3g} {}", n, unit);
    n /= 1000.0;
  }
  return fmt::format("{:.3g} TB", n);
}

/// "200 per class", "17 to 21 per class"
inline std::string per_class_text(const std::vector<std::int64_t>& samples_per_class) {
  const auto [least, most] = std::minmax_element(samples_per_class.begin(), samples_per_class.end());
  return *least == *most ? fmt::format("{} per class", *least) : fmt::format("{} to {} per class", *least, *most);
}

/// "32 x 32 x 3"
inline std::string shape_text(const data::ImageSetInfo& info) {
  return info.height > 0 ? fmt::format("{} x {} x {}", info.height, info.width, info.channels) : "several sizes";
}

}  // namespace lockstep::commands

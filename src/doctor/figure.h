// Measured numbers as text.
#pragma once

#include <fmt/format.h>

#include <string>

#include "base/number_text.h"

namespace lockstep::doctor {

/// With three digits: "0.0337", "22.4", "24,100".
inline std::string figure(double number) {
  constexpr double kThousand = 999.5;
  return number < kThousand ? fmt::format("{:.3g}", number) : with_commas(number);
}

}  // namespace lockstep::doctor

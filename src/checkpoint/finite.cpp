#include "checkpoint/finite.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>

#include "lockstep/error.h"

namespace lockstep::checkpoint {

bool is_finite(std::span<const float> values) {
  constexpr std::uint32_t kExponent = 0x7f800000;
  std::uint32_t n_others = 0;  // accumulated without an early exit, so that the loop is vectorised
  for (const float value : values) n_others |= (std::bit_cast<std::uint32_t>(value) & kExponent) == kExponent ? 1 : 0;
  return n_others == 0;
}

namespace {

void require_finite(const std::string& file, const std::string& tensor, std::span<const float> values) {
  if (is_finite(values)) return;
  const auto first = std::ranges::find_if_not(values, [](float value) { return std::isfinite(value); });
  const auto n_others = std::ranges::count_if(values, [](float value) { return !std::isfinite(value); });
  fail(ErrorCode::checkpoint_damaged,
       "{} of {} is not finite: {} of its {} values {} infinite or NaN, the first of them number {} ({}); the training "
       "that wrote it had diverged",
       tensor, file, n_others, values.size(), n_others == 1 ? "is" : "are", first - values.begin(), *first);
}

/// The values must be finite.
void require_not_negative(const std::string& file, const std::string& tensor, std::span<const float> values) {
  const auto is_negative = [](float value) { return value < 0; };
  const auto first = std::ranges::find_if(values, is_negative);
  if (first == values.end()) return;
  const auto n_negative = std::ranges::count_if(values, is_negative);
  fail(ErrorCode::checkpoint_damaged,
       "{} of {} cannot be a variance: {} of its {} values {} negative, the first of them number {} ({})", tensor, file,
       n_negative, values.size(), n_negative == 1 ? "is" : "are", first - values.begin(), *first);
}

}  // namespace

void require_usable(const std::string& file, const std::string& tensor, std::span<const float> values) {
  require_finite(file, tensor, values);
  if (tensor.ends_with(".running_var")) require_not_negative(file, tensor, values);
}

void require_usable(const std::string& file, const std::vector<NamedTensor>& tensors) {
  for (const NamedTensor& tensor : tensors) require_usable(file, tensor.name, tensor.values);
}

}  // namespace lockstep::checkpoint

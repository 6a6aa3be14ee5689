// Random erasing, straight from the description in lockstep/ops/random_erase.h.
#pragma once

#include <optional>

#include "lockstep/ops/random_erase.h"

namespace lockstep::reference {

/// The size of the rectangle in one try, from the uniform numbers `u` and `v`; no value if it is too large.
struct ErasedSize {
  int height = 0, width = 0;
  bool operator==(const ErasedSize&) const = default;
};
std::optional<ErasedSize> erased_size(double u, double v, int image_height, int image_width);

struct Erased {
  int top = 0, left = 0;
  ErasedSize size;
};
std::optional<Erased> draw_erased(const RandomEraseDescription& d, std::uint32_t sample, std::uint32_t epoch);

}  // namespace lockstep::reference

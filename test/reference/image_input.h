// Bytes to the network's input: crop, flip, normalisation, straight from the description in lockstep/ops/image_input.h.
#pragma once

#include "lockstep/ops/image_input.h"

namespace lockstep::reference {

/// Where output pixel (0, 0) of a sample comes from, before the flip, and whether its rows are turned round.
struct Augmentation {
  int row = 0;     // in [-padding, padding]
  int column = 0;  // in [-padding, padding]
  bool flip = false;
};
Augmentation draw_augmentation(const ImageInputDescription& d, std::uint32_t sample, std::uint32_t epoch);

}  // namespace lockstep::reference

// From bytes to the network's input: resizing, crop, flip and normalisation, straight from the description in
// lockstep/ops/image_input.h.
#pragma once

#include "lockstep/ops/image_input.h"

namespace lockstep::reference {

/// The position in the source of output pixel (0, 0) before the flip, and whether rows are reversed.
struct Augmentation {
  int row = 0;     // in [-padding, padding]
  int column = 0;  // in [-padding, padding]
  bool flip = false;
};
Augmentation draw_augmentation(const ImageInputDescription& d, std::uint32_t sample, std::uint32_t epoch);

}  // namespace lockstep::reference

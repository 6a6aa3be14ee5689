// Mixup and cutmix, straight from the description in lockstep/ops/mix_images.h.
#pragma once

#include "lockstep/ops/mix_images.h"

namespace lockstep::reference {

/// The rows [top, bottom) and columns [left, right) of an image that cutmix replaces.
struct Rectangle {
  int top = 0, bottom = 0, left = 0, right = 0;
};
/// `weight` is that of the image itself; `row` and `column` are those of the centre.
Rectangle cutmix_rectangle(double weight, int row, int column, int height, int width);

}  // namespace lockstep::reference

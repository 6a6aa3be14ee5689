// Random erasing (Zhong et al., "Random Erasing Data Augmentation", 2020), with the defaults of torchvision's
// RandomErasing: y = x, but with the probability p a rectangle of an image, 2 to 33 % of its area with a height of 0.3
// to 3.3 times its width, becomes 0, which is the mean colour of normalised images.
//
// Each draw is Philox(seed, erase, sample, epoch). Uniform number 0 of block 0 is less than p if the image is erased.
// Try t = 1, 2 ... 10 takes a = H W (0.02 + 0.31 u) and r = exp(log 0.3 + (log 3.3 - log 0.3) v) from the uniform
// numbers u and v of block 2 t - 1, the height h = round(sqrt(a r)) and the width w = round(sqrt(a / r)). The first try
// with h < H and w < W is used; its first row is below(number 0 of block 2 t, H - h + 1), and its first column
// below(number 1, W - w + 1). If there is none, the image stays as it is.
#pragma once

#include <cmath>

#include "lockstep/dtype.h"
#include "lockstep/host_device.h"
#include "lockstep/op.h"
#include "lockstep/ops/step_scalars.h"
#include "lockstep/philox.h"
#include "lockstep/shape.h"

namespace lockstep {

struct RandomEraseDescription {
  using Op = class RandomErase;
  static constexpr std::string_view kName = "random_erase";

  Shape x;  // (N, H, W, C) in dtype, like y
  DType dtype = DType::fp32;
  double probability = 0;  // p
  std::uint32_t seed = 0;
};

/// A height of 0 means that nothing is erased.
struct ErasedRectangle {
  int top = 0, left = 0, height = 0, width = 0;
};
LOCKSTEP_HOST_DEVICE inline ErasedRectangle draw_erased(double probability, int height, int width,
                                                        const Philox& random) {
  constexpr int kTries = 10;
  constexpr double kLeastArea = 0.02, kAreaRange = 0.31;
  constexpr double kLogLeastRatio = -1.2039728043259360, kLogRatioRange = 2.3978952727983707;
  if (Philox::uniform(random.block(0), 0) >= probability) return {};
  for (std::uint64_t t = 1; t <= kTries; ++t) {
    const auto size = random.block(2 * t - 1), place = random.block(2 * t);
    const double area = static_cast<double>(height) * width * (kLeastArea + kAreaRange * Philox::uniform(size, 0));
    const double ratio = std::exp(kLogLeastRatio + kLogRatioRange * Philox::uniform(size, 1));
    const int h = static_cast<int>(std::rint(std::sqrt(area * ratio)));
    const int w = static_cast<int>(std::rint(std::sqrt(area / ratio)));
    if (h >= height || w >= width) continue;
    return {static_cast<int>(Philox::below(place[0], static_cast<std::uint32_t>(height - h + 1))),
            static_cast<int>(Philox::below(place[1], static_cast<std::uint32_t>(width - w + 1))), h, w};
  }
  return {};
}

struct RandomEraseCalls {
  struct Forward {
    const void* x = nullptr;                    // (N, H, W, C)
    const std::uint32_t* sample_ids = nullptr;  // (N), position in the file
    const StepScalars* scalars = nullptr;       // epoch
    void* y = nullptr;                          // (N, H, W, C), not x
  };
};

class RandomErase : public ForwardOp<RandomEraseDescription, RandomEraseCalls> {};

}  // namespace lockstep

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

#include "lockstep/dtype.h"
#include "lockstep/op.h"
#include "lockstep/ops/step_scalars.h"
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

namespace erasing {
inline constexpr int kTries = 10;
inline constexpr double kLeastArea = 0.02, kAreaRange = 0.31;
inline constexpr double kLogLeastRatio = -1.2039728043259360, kLogRatioRange = 2.3978952727983707;
}  // namespace erasing

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

// Mixup (Zhang et al., "mixup: Beyond Empirical Risk Minimization", 2018) and CutMix (Yun et al., "CutMix:
// Regularization Strategy to Train Strong Classifiers with Localizable Features", 2019), as torchvision's MixUp, CutMix
// and RandomChoice of the two apply them to the batch of a process. Sample n is mixed with its partner, sample n - 1;
// the partner of sample 0 is the last sample.
//     mixup:  y_n = w x_n + (1 - w) x_(n-1)
//     cutmix: y_n = x_n, but x_(n-1) in rows [max(r - h, 0), min(r + h, H)) and columns [max(c - v, 0), min(c + v, W)),
//             h = int(H sqrt(1 - w) / 2), v = int(W sqrt(1 - w) / 2), and then w = 1 - (area of the rectangle) / (H W)
// The label of x_n has the weight w in the loss, and that of x_(n-1) 1 - w (MixedLabels, lockstep/ops/cross_entropy.h).
//
// All samples of the batch share one draw: Philox(seed, mix, sample_ids[0], epoch), block 0. Number 0 chooses cutmix
// (lowest bit 1) if both are given. Number 1 gives w, the entry below(number, kBetaQuantiles) of a table of quantiles
// of its beta distribution, so that all backends draw the same w, bit for bit. With cutmix, number 2 gives the row r in
// [0, H) and number 3 the column c in [0, W).
#pragma once

#include <cmath>
#include <cstdint>

#include "lockstep/dtype.h"
#include "lockstep/host_device.h"
#include "lockstep/op.h"
#include "lockstep/ops/step_scalars.h"
#include "lockstep/philox.h"
#include "lockstep/shape.h"

namespace lockstep {

inline constexpr std::uint32_t kBetaQuantiles = 4096;

struct MixImagesDescription {
  using Op = class MixImages;
  static constexpr std::string_view kName = "mix_images";

  Shape x;  // (N, H, W, C) in dtype, like y
  DType dtype = DType::fp32;
  std::uint32_t seed = 0;
};

struct MixImagesCalls {
  struct Forward {
    const void* x = nullptr;                    // (N, H, W, C)
    const std::int32_t* labels = nullptr;       // (N)
    const std::uint32_t* sample_ids = nullptr;  // (N), position in the file
    const float* mixup_quantiles = nullptr;     // (kBetaQuantiles), of w; null: no mixup
    const float* cutmix_quantiles = nullptr;    // the same for cutmix; one of the two is given
    const StepScalars* scalars = nullptr;       // epoch
    void* y = nullptr;                          // (N, H, W, C), not x
    std::int32_t* partner_labels = nullptr;     // (N): labels[n - 1]; labels[n] if that is negative
    float* weight = nullptr;                    // (1): w
  };
};

/// How the images of a batch are mixed, drawn at random.
struct ImageMix {
  float weight = 1;
  bool cuts = false;
  int top = 0, bottom = 0, left = 0, right = 0;  // of the rectangle
};
LOCKSTEP_HOST_DEVICE inline ImageMix draw_mix(std::uint32_t seed, int height, int width,
                                              const MixImagesCalls::Forward& args) {
  const auto random = Philox(seed, RandomPurpose::mix, args.sample_ids[0], args.scalars->epoch).block(0);
  ImageMix mix;
  mix.cuts = args.cutmix_quantiles && (!args.mixup_quantiles || (random[0] & 1u) != 0);
  const float* const quantiles = mix.cuts ? args.cutmix_quantiles : args.mixup_quantiles;
  mix.weight = quantiles[Philox::below(random[1], kBetaQuantiles)];
  if (!mix.cuts) return mix;
  const int row = static_cast<int>(Philox::below(random[2], static_cast<std::uint32_t>(height)));
  const int column = static_cast<int>(Philox::below(random[3], static_cast<std::uint32_t>(width)));
  const double side = std::sqrt(1.0 - double{mix.weight}) * 0.5;
  const int half_height = static_cast<int>(side * height), half_width = static_cast<int>(side * width);
  mix.top = row > half_height ? row - half_height : 0;
  mix.bottom = row + half_height < height ? row + half_height : height;
  mix.left = column > half_width ? column - half_width : 0;
  mix.right = column + half_width < width ? column + half_width : width;
  const double area = static_cast<double>(mix.bottom - mix.top) * (mix.right - mix.left);
  mix.weight = static_cast<float>(1.0 - area / (static_cast<double>(height) * width));
  return mix;
}

class MixImages : public ForwardOp<MixImagesDescription, MixImagesCalls> {};

}  // namespace lockstep

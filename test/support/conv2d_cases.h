// The shapes of convolutions in 16 bits that tests compute, and that cuDNN must have plans for.
#pragma once

#include <optional>

#include "lockstep/ops/conv2d.h"

namespace lockstep::test {

struct ConvolutionCase {
  Shape x;  // (N, H, W, C)
  std::int64_t out_channels;
  int kernel_size, stride, padding;
  bool statistics = true;
  bool input_gradient = true;
};

/// In bf16, oneDNN computes any shape, and own kernels compute channels in multiples of 32 if the processor has AMX.
inline const ConvolutionCase kBf16Cases[] = {
    {{1, 7, 5, 3}, 16, 3, 1, 1, true, false},  // the first layer
    {{2, 9, 9, 3}, 16, 7, 2, 3, true, false},  // the ImageNet stem
    {{2, 5, 5, 13}, 7, 3, 1, 1},               // channels that are no multiple of a vector
    {{2, 6, 6, 32}, 16, 3, 2, 1},
    {{2, 8, 8, 32}, 64, 3, 1, 1},
    {{1, 1, 1, 32}, 32, 3, 1, 1},  // one pixel: eight of nine taps in the padding
    {{5, 3, 3, 96}, 32, 3, 1, 1},  // less than one tile per image
    {{3, 5, 7, 32}, 32, 3, 2, 1},  // odd sizes, stride 2
    {{2, 6, 8, 64}, 32, 3, 2, 1},  // even sizes, stride 2
    {{2, 7, 7, 32}, 64, 1, 2, 0},  // a short cut: pixels that no window sees
    {{1, 4, 6, 64}, 32, 1, 1, 0},
    {{2, 9, 9, 32}, 32, 7, 2, 3},     // a border of two
    {{70, 12, 12, 64}, 32, 3, 1, 1},  // more images than are packed at a time
};

/// For fp16, in which the cuda backend fuses most, and for bf16: shapes with all fused graphs, with some, and with
/// none.
inline const ConvolutionCase kFp16Cases[] = {
    {{2, 5, 6, 3}, 16, 3, 1, 1, true, false},  // the first layer: channels are padded to 8
    {{2, 9, 9, 3}, 16, 7, 2, 3, true, false},  // the ImageNet stem: padded to 4, or in 2x2 blocks
    {{1, 5, 5, 6}, 16, 7, 2, 3, true, false},  // padded to 8, or to 24 in blocks
    {{2, 5, 5, 13}, 7, 3, 1, 1},               // nothing is fused
    {{1, 4, 6, 16}, 32, 1, 1, 0},              // everything is fused
    {{2, 4, 5, 8}, 16, 3, 1, 1},               // everything except z of a residual
    {{2, 5, 7, 16}, 8, 3, 2, 1},               // and except added gradients
    {{2, 7, 7, 8}, 24, 1, 2, 0},               // a shortcut: pixels that no window covers
    {{1, 4, 6, 16}, 32, 1, 1, 0, false, true},
    // In blocks of 2x2 pixels:
    {{2, 8, 12, 3}, 8, 7, 2, 3, true, false},  // an even size
    {{2, 6, 7, 1}, 8, 5, 2, 2, true, false},   // an even border: a window begins with a block
    {{1, 9, 6, 3}, 8, 4, 2, 0, true, false},   // no border, and a window of whole blocks
    {{1, 8, 7, 2}, 8, 3, 2, 1, true, false},
};

inline Conv2dDescription describe(const ConvolutionCase& c, const std::optional<InputNormalization>& normalization) {
  Conv2dDescription d;
  d.x = c.x;
  d.out_channels = c.out_channels;
  d.kernel_size = c.kernel_size;
  d.stride = c.stride;
  d.padding = c.padding;
  d.statistics = c.statistics;
  d.input_gradient = c.input_gradient;
  d.normalization = normalization;
  return d;
}

}  // namespace lockstep::test

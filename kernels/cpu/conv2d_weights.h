// The weight gradient of a convolution of small images, where oneDNN's kernel reaches half of the multiply rate: it
// loads and stores its sums once per row of the image, which is 4 or 8 pixels long here.
#pragma once

#include <memory>

#include "kernels/cpu/conv2d_bare.h"
#include "lockstep/ops/conv2d.h"

namespace lockstep::cpu {

/// Whether this kernel supports the weight gradient: tensors and weights are in blocks of 16 channels. oneDNN computes
/// larger images.
bool weight_gradient_fits(const Conv2dDescription& d, Direction direction);

/// The layout that the kernel needs: (K/16, C/16, R, S, 16 c, 16 k).
std::shared_ptr<const BlockedLayout> weight_gradient_layout(const Conv2dDescription& d);

/// Whether this kernel is the faster one: at most 64 pixels of output. Measured, batch 32, 1 thread, Sapphire Rapids,
/// the kernel of oneDNN 3.2 against this one: 4x4x512 21.9 and 12.9 ms, 8x8x256 to 512 with stride 2 14.4 and 8.7 ms,
/// 8x8x256 16.0 and 13.9 ms; 16x16x128 14.2 and 15.3 ms. At the multiply rate, without the taps that fall on the
/// padding: 9.9, 6.0, 11.9 and 13.1 ms.
bool weight_gradient_pays(const Conv2dDescription& d);

/// dweight (K/16, C/16, R, S, 16 c, 16 k), overwritten or added to, from x and dy in nchw16c:
///   dweight[k,c,r,s] = sum_{n,h,w} dy[n,h,w,k] x[n, h*stride+r-pad, w*stride+s-pad, c]
/// Each sum runs over images, rows and columns in that order, whatever the number of threads.
std::unique_ptr<BareConvolution> make_weight_gradient(const Conv2dDescription& d, Direction direction,
                                                      const CpuContext& context);

}  // namespace lockstep::cpu

// Convolution as matrix products (base/product.h), in nhwc. A row of the left matrix contains what the window covers at
// one position ("im2col"). Some rows are gathered at a time, so that they are multiplied while they are in the cache;
// for a 1x1 window with stride 1 the tensor itself is the matrix.
//
//   forward          y (N H' W', K)       = x gathered (N H' W', R S C) * w (R S C, K)
//   data gradient    dx's plane (., C)    = dy gathered (., taps K) * w (taps K, C), for each of stride^2 planes
//   weight gradient  dw's taps (taps C, K) = sum over some rows at a time of x gathered (., taps C)^T * dy (., K)
// A plane is the set of pixels with the same (row, column) modulo the stride; the same taps of the window reach all of
// them.
//
// Measured, fp32, 1 thread, Sapphire Rapids, oneDNN 3.2's convolution in nhwc against this, forward, data and weight
// gradient: few pixels with many weights are faster, 8x8x256 to 512 with stride 2, batch 32: 16.0 to 12.4, 20.0 to
// 14.0, 21.9 to 13.7 ms; 2x2x512, batch 16: 9.0 to 5.7, 12.5 to 7.7, 13.4 to 6.6 ms. Large images are slower because of
// the gathering, 32x32x64, batch 32: 18.9 to 22.3, 19.1 to 23.5, 22.3 to 29.9 ms.
//
// Sums are fp32. With oneDNN, their order depends on the shape and the number of threads.
#pragma once

#include <memory>

#include "kernels/cpu/conv2d_bare.h"
#include "lockstep/ops/conv2d.h"

namespace lockstep::cpu {

/// x and y in nhwc, or without oneDNN in any layout, in a type that products take (product_type). Weights can have any
/// layout of this backend; if it is not that of the matrices above, forward and data gradient copy them.
bool matmul_convolution_fits(const Conv2dDescription& d, Direction direction);

/// If the description has no weight layout, it is (R, S, C, K).
std::unique_ptr<BareConvolution> make_matmul_convolution(const Conv2dDescription& d, Direction direction,
                                                         const CpuContext& context);

}  // namespace lockstep::cpu

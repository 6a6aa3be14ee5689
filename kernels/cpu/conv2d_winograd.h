// 3x3 convolutions with a stride of 1 in fewer multiplications: Winograd's minimal filtering F(4x4, 3x3) (Lavin and
// Gray, "Fast Algorithms for Convolutional Neural Networks", CVPR 2016). Images are cut into tiles of 4x4 outputs, each
// of which needs 6x6 inputs. With constant matrices A, B and G:
//
//   forward          y  = A^T [sum over c of (G w G^T) * (B^T x B)] A       for each tile; * is elementwise
//   data gradient    the same of dy, with the window turned by 180 degrees and its two channels exchanged
//   weight gradient  dw = G^T [sum over tiles of (B^T x B) * (A dy A^T)] G
//
// The sums in brackets are 36 products of matrices, which take 36 multiplications where the convolution has 144. The
// price is rounding: against double precision, the error of random tensors with 64 channels is two to three times
// that of adding the products directly (test/kernels/conv2d_winograd_test.cpp). It is therefore a candidate for timing
// only, which `reproducible` rules out.
//   Tensors of bf16 are widened as they are transformed, and everything is computed in fp32.
#pragma once

#include <memory>

#include "kernels/cpu/conv2d_bare.h"
#include "lockstep/ops/conv2d.h"

namespace lockstep::cpu {

/// A window of 3, stride 1, padding 1, and channels in multiples of 32.
bool winograd_fits(const Conv2dDescription& d, Direction direction);

std::unique_ptr<BareConvolution> make_winograd_convolution(const Conv2dDescription& d, Direction direction,
                                                           const CpuContext& context);

}  // namespace lockstep::cpu

// Own bf16 convolutions on AMX, in nhwc. All three directions are products of tiles over *positions*: the output's
// pixels, row by row, with a border of zeros that neighbouring rows and images share, so that a tap of the window is a
// constant distance in memory and 16 positions are the rows of a tile whatever the width of an image.
//
// With a stride of 2 the input is packed as four planes (even and odd rows and columns), each as large as the output,
// so that the same holds; the data gradient is then computed plane by plane.
//
//   forward          y[p][k]    = sum over taps, c of x[p + tap][c] w[tap][c][k]
//   data gradient    dx[p][c]   = sum over taps, k of dy[p - tap][k] w[tap][k][c]
//   weight gradient  dw[c][k]  += sum over p of x[p + tap][c] dy[p][k]
//
// Sums are fp32, in an order that does not depend on the number of threads. Each call of forward and data gradient
// copies the weights, which are bf16, into tiles.
#pragma once

#include <memory>

#include "kernels/cpu/conv2d_bare.h"
#include "lockstep/ops/conv2d.h"

namespace lockstep::cpu {

/// Whether these kernels support the convolution here: bf16 in nhwc, channels in multiples of 32, an odd window with
/// padding window/2, stride 1 or 2, weights in their layout, on a processor with AMX.
bool amx_convolution_fits(const Conv2dDescription& d, Direction direction);

std::unique_ptr<BareConvolution> make_amx_convolution(const Conv2dDescription& d, Direction direction,
                                                      const CpuContext& context);

}  // namespace lockstep::cpu

// A bare convolution of bf16 tensors that multiplies in fp32, for processors whose instructions for bf16 are missing or
// slower: some images at a time are widened into the workspace, in the layout of an fp32 algorithm, which convolves
// them while they are in the cache. In memory, x, y and the weights stay bf16.
//
//   forward, data gradient   the results of the fp32 algorithm, rounded to bf16
//   weight gradient          the sum over images in fp32, to which the fp32 algorithm adds group after group
//
// Weights are widened once per call. The workspace holds one group of images and two copies of the weights in fp32.
#pragma once

#include <functional>
#include <memory>

#include "kernels/cpu/conv2d_bare.h"
#include "lockstep/ops/conv2d.h"

namespace lockstep::cpu {

/// Plans an fp32 algorithm for a group of images, like make_onednn_convolution.
using MakeConvolution = std::unique_ptr<BareConvolution> (*)(const Conv2dDescription&, Direction, const CpuContext&);

/// The same convolution in fp32 and in the layouts that are best for it: in blocks of 16 channels, or nhwc where the
/// processor or the channels do not fit or `needs_nhwc`. It has no weight layout.
Conv2dDescription widened(const Conv2dDescription& d, bool needs_nhwc);

/// `d` is in bf16 and nhwc, and `fp32` is widened(d). If `fp32` has a weight layout, `make` needs that layout;
/// otherwise any will do. If `d` has no weight layout, that of the fp32 algorithm is used.
std::unique_ptr<BareConvolution> make_widened_convolution(const Conv2dDescription& d, const Conv2dDescription& fp32,
                                                          Direction direction, const CpuContext& context,
                                                          MakeConvolution make);

}  // namespace lockstep::cpu

// What oneDNN does for one convolution: the layouts it works in, an implementation for each direction, and the reorders
// between those layouts and the caller's. The passes around it (normalisation, statistics, accumulation) are
// conv2d.cpp's.
//
// Measured, ResNet-18 at 32x32, batch 32, 1 thread, Zen 4 (oneDNN 3.2, forward and both gradients, all convolutions but
// the first): nchw16c 891 ms, nhwc 922 ms. A reorder of weights is fast (53 GB/s, 2 ms for all of ResNet-18).
#pragma once

#include <memory>
#include <optional>

#include "kernels/cpu/base/onednn.h"
#include "kernels/cpu/conv2d_bare.h"
#include "lockstep/ops/conv2d.h"

namespace lockstep::cpu {

struct ConvolutionPlan {
  // The caller's tensors, and the same as the primitives read and write them. They differ where oneDNN has no fast
  // implementation for the caller's pair: nhwc in and nchw16c out, or the reverse; and in bf16 on a processor without
  // its instructions, where the primitives compute in fp32.
  dnnl::memory::desc x, y, inner_x, inner_y;
  std::shared_ptr<const BlockedLayout> layout;  // of the weights
  dnnl::memory::desc weights;                   // the caller's, of x's type in `layout`

  dnnl::convolution_forward::primitive_desc forward;
  std::optional<dnnl::convolution_backward_data::primitive_desc> backward_data;
  std::optional<dnnl::convolution_backward_weights::primitive_desc> backward_weights;
};

/// For backward: the plan of one direction. Throws Error if oneDNN has no implementation.
ConvolutionPlan plan_convolution(const Conv2dDescription& description, Direction direction);

}  // namespace lockstep::cpu

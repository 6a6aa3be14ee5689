// A bare convolution, without the passes that conv2d.cpp adds: three directions, in the caller's layouts. There are
// several algorithms for each (conv2d_algorithms.cpp).
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "kernels/cpu/base/blocked_layout.h"
#include "kernels/cpu/base/context.h"
#include "lockstep/algorithms.h"
#include "lockstep/error.h"
#include "lockstep/ops/conv2d.h"

namespace lockstep::cpu {

enum class Direction { forward, data_gradient, weight_gradient };
const char* name(Direction direction);

/// Throws Error if the description is impossible.
void check(const Conv2dDescription& description);
/// "conv2d (32, 32, 32, 64) -> 128, 3x3/2"
std::string text(const Conv2dDescription& description);

/// Planned for one direction; the others must not be called. Both gradients use the weight layout of forward:
/// Conv2dDescription::weight_layout. Weights have the type of x and y, and their gradient is fp32.
class BareConvolution {
 public:
  virtual ~BareConvolution() = default;
  virtual std::shared_ptr<const BlockedLayout> weight_layout() const = 0;
  /// Bytes of workspace of a call; 64-byte aligned.
  virtual std::size_t workspace_bytes() const = 0;
  virtual std::string describe() const = 0;

  /// y = convolution of x, overwritten.
  virtual void forward(const void* x, const void* weight, void* y, void* workspace);
  /// dx, overwritten.
  virtual void data_gradient(const void* dy, const void* weight, void* dx, void* workspace);
  /// dweight, overwritten or added to; zeros where the layout has padding.
  virtual void weight_gradient(const void* x, const void* dy, float* dweight, bool accumulate, void* workspace);
};

/// Plans the algorithm that `algorithms` has stored or finds to be the fastest; or if it is null, the first that fits.
std::unique_ptr<BareConvolution> make_bare_convolution(const Conv2dDescription& d, Direction direction,
                                                       const CpuContext& context, Algorithms* algorithms);

/// Whether oneDNN computes convolutions of activations in blocks of 16 channels, which are one AVX-512 register.
bool has_convolutions_in_blocks();

/// The layout of activations between convolutions: blocks of 16 channels are one AVX-512 register (measured in
/// conv2d_plan_onednn.h); in bf16 all fast kernels need nhwc. With `algorithms`, fp32 is timed for any batch.
Layout choose_activation_layout(const Shape& shape, DType dtype, const CpuContext& context, Algorithms* algorithms);

/// In builds with oneDNN.
std::unique_ptr<BareConvolution> make_onednn_convolution(const Conv2dDescription& d, Direction direction,
                                                         const CpuContext& context);

}  // namespace lockstep::cpu

// A bare convolution, without the passes that conv2d.cpp puts around it: three directions, in the caller's layouts.
// Who does it: oneDNN (conv2d_plan.h), or own kernels on AMX (conv2d_amx.h).
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "kernels/cpu/context.h"
#include "kernels/cpu/onednn.h"
#include "lockstep/op.h"

namespace lockstep::cpu {

class BareConvolution {
 public:
  struct WorkspaceBytes {
    std::size_t forward = 0, weight_gradient = 0, data_gradient = 0;
  };

  virtual ~BareConvolution() = default;
  virtual std::shared_ptr<const OnednnLayout> weight_layout() const = 0;
  /// Of each call; 64-byte aligned.
  virtual WorkspaceBytes workspace_bytes() const = 0;
  virtual std::string describe() const = 0;

  /// y = convolution of x, overwritten.
  virtual void forward(const void* x, const float* weight, void* y, void* workspace) = 0;
  /// Overwritten or added to; zeros where the layout pads.
  virtual void weight_gradient(const void* x, const void* dy, float* dweight, bool accumulate, void* workspace) = 0;
  /// dx, overwritten.
  virtual void data_gradient(const void* dy, const float* weight, void* dx, void* workspace) = 0;
};

std::unique_ptr<BareConvolution> make_onednn_convolution(const Conv2dDescription& d, const CpuContext& context);

}  // namespace lockstep::cpu

// RMS norm over the last dimension (Zhang and Sennrich, "Root Mean Square Layer Normalization", 2019, equation 4), with
// the sum of the residual stream before it, as a decoder block needs it:
//     s = x + residual      the new residual stream, rounded to dtype; s = x without a residual
//     inverse_rms = 1 / sqrt(mean over the row of s^2 + epsilon)
//     y = s * inverse_rms * w,  w = weight_offset + weight
// Backward adds the gradient along the residual stream and computes the gradient of s, which is that of x
// and of the residual:
//     ds = inverse_rms * (w * dy - s_hat * mean over the row of (w * dy * s_hat)) + added,
//     dweight = sum over rows of dy * s_hat,  s_hat = s * inverse_rms
// Rows are summed in an order that depends on the shape alone, so dweight has the same bits on any number of threads.
#pragma once

#include "lockstep/dtype.h"
#include "lockstep/op.h"

namespace lockstep {

struct RmsNormDescription {
  using Op = class RmsNorm;
  static constexpr std::string_view kName = "rms_norm";

  std::int64_t rows = 0;
  std::int64_t width = 0;     // of the last dimension
  DType dtype = DType::fp32;  // of x, residual, s, y and their gradients
  bool residual = false;
  float epsilon = 1e-5f;
  float weight_offset = 0;
  bool inference = false;  // backward is never called
};

struct RmsNormCalls {
  struct Forward {
    const void* x = nullptr;         // (rows, width)
    const void* residual = nullptr;  // (rows, width); null without a residual
    const float* weight = nullptr;   // (width)
    void* s = nullptr;               // (rows, width), overwritten; may be x or residual; null without a residual
    void* y = nullptr;               // (rows, width), overwritten
  };
  struct Backward {
    const void* dy = nullptr;  // (rows, width)
    const void* s = nullptr;   // of forward; x without a residual
    const float* weight = nullptr;
    const void* added = nullptr;  // (rows, width) or null: the gradient that is added along the residual stream
    void* ds = nullptr;           // (rows, width); may be `added` or dy
    GradientMode ds_mode = GradientMode::overwrite;
    float* dweight = nullptr;  // (width)
    GradientMode dweight_mode = GradientMode::overwrite;
  };
};

class RmsNorm : public TwoWayOp<RmsNormDescription, RmsNormCalls> {};

}  // namespace lockstep

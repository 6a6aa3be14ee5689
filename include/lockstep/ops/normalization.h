// A pending normalisation: the end of a batch norm, computed inside the convolution or pooling that reads its result.
//     z = act(scale * x + bias)                                   residual none
//     z = act(scale * x + bias + r)                               residual plain
//     z = act((scale * x + bias) + (scale2 * r + bias2))          residual normalized
// with act = ReLU or identity, and scale, bias (C) from BatchNorm::finalize. Its backward pass computes
//     dz   = act'(z) * (data gradient + added)          the gradient before the activation
//     sums = (sum dz, sum dz * x_hat), x_hat = (x - mean) * inverse_stddev, over all rows, per channel
// and BatchNorm::backward turns dz and the (possibly all-reduced) sums into dx. The gradient of a plain residual is dz
// itself. Library kernels that read scale and bias expect them in the type of x, and those that recompute z in backward
// expect gamma and beta. These are therefore arguments too, so that no op has to convert them. One op covers what a
// cuDNN graph can do in one kernel; a backend that cannot fuse it uses several passes and says so in Op::describe().
#pragma once

#include <cstdint>

#include "lockstep/dtype.h"

namespace lockstep {

struct InputNormalization {
  enum class Residual : std::uint8_t { none, plain, normalized };
  Residual residual = Residual::none;
  bool relu = true;
  bool store = false;  // z has other readers too: write it to NormalizationForward::z
};

struct NormalizationForward {
  const float* scale_bias = nullptr;           // (2, C): scale, then bias
  const void* residual = nullptr;              // shape of x
  const float* residual_scale_bias = nullptr;  // (2, C), residual normalized
  void* z = nullptr;                           // shape of x, written if `store`
  // The same scales and biases in the type of x, where it has 16 bits
  const void* low_precision_scale_bias = nullptr;
  const void* low_precision_residual_scale_bias = nullptr;
};

struct NormalizationBackward {
  const float* mean_inverse_stddev = nullptr;           // (2, C): mean, then 1 / sqrt(variance + epsilon)
  const float* residual_mean_inverse_stddev = nullptr;  // (2, C), residual normalized
  const void* added = nullptr;                          // shape of x or null: another gradient of z
  void* dz = nullptr;                                   // shape of x, overwritten; may be `added`
  // fp64, or fp32 if the op says so (Conv2d::sums_dtype()):
  TypedPointer sums{};                    // (2, C), overwritten: sum dz, sum dz * x_hat
  TypedPointer residual_sums{};           // (2, C), residual normalized: sum dz, sum dz * r_hat
  const float* gamma = nullptr;           // (C), of the batch norm of x
  const float* beta = nullptr;            // (C)
  const float* residual_gamma = nullptr;  // (C), residual normalized
  const float* residual_beta = nullptr;   // (C)
};

}  // namespace lockstep

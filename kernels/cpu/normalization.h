// The passes of a pending normalisation (lockstep/ops/normalization.h): apply it, propagate gradients back through it,
// and sum a tensor per channel. Convolution and pooling are made of these on the CPU; all are bound by memory, and each
// reads its tensors once.
//
// Layouts: nhwc, rows n*hw of c channels, any c; nchw16c, (n, c/16, hw, 16), c a multiple of 16.
// Elements are fp32 or bf16, in memory; between loading and storing they are fp32. Sums over rows are taken in fp64
// from the first element on (products of two fp32 are exact there), so they carry only fp64 rounding: relative error
// below n*hw * 1.2e-16 of the sum of magnitudes. The order of summation is fixed by the shape and the number of
// threads.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/base/context.h"
#include "lockstep/dtype.h"
#include "lockstep/op.h"
#include "lockstep/ops/normalization.h"

namespace lockstep::cpu {

struct Activation {
  std::int64_t n = 0;   // samples
  std::int64_t hw = 0;  // pixels of an image, H * W
  std::int64_t c = 0;   // channels
  Layout layout = Layout::nhwc;
  DType dtype = DType::fp32;  // or bf16; of all tensors of a pass
};

/// z = act(scale*x + bias [+ r | + scale2*r + bias2]) into `z`, which may be x or the residual.
void normalize(const Activation& shape, const InputNormalization& normalization, const void* x,
               const NormalizationForward& args, void* z, const CpuContext& context);

/// `statistics` (2, C) fp64, overwritten: sum x, sum x^2. `workspace` of channel_sums_workspace_bytes(), 64-byte
/// aligned.
std::size_t channel_sums_workspace_bytes(const Activation& shape, const CpuContext& context);
void channel_sums(const Activation& shape, const void* x, double* statistics, void* workspace,
                  const CpuContext& context);

/// dz = act'(z) * (data_gradient + added) into args.dz, and args.sums, args.residual_sums from it.
/// The ReLU's mask comes from `z` if it is not null; otherwise z is recomputed from x, scale, bias and residual.
/// args.dz may be data_gradient or args.added.
std::size_t normalize_backward_workspace_bytes(const Activation& shape, const CpuContext& context);
void normalize_backward(const Activation& shape, const InputNormalization& normalization, const void* x,
                        const NormalizationForward& forward, const void* z, const void* data_gradient,
                        const NormalizationBackward& args, void* workspace, const CpuContext& context);

}  // namespace lockstep::cpu

// The passes of a pending normalisation (lockstep/ops/normalization.h): apply it, propagate gradients back through it,
// and sum a tensor per channel. Convolution and pooling are made of these on the device where a library does not fuse
// them; all are bound by memory, and each reads and writes its tensors once.
//
// Activations are nhwc, rows of C channels, any C; 16 bytes at a time where C is a multiple of a pack and pointers are
// aligned to 16 bytes, else one number at a time. Elements are fp32, fp16 or bf16 in memory and fp32 in registers.
// Sums: a thread adds a few terms in fp32 and its groups of terms in fp64, blocks leave partial sums in fp64 in the
// workspace, and a second kernel adds those in a fixed order: relative error below 2^-22 of the sum of magnitudes,
// whatever the number of rows (normalization.cu). The order is fixed by the shape and the device.
// All calls are ordered by the stream and the host reads nothing, so they can be captured in a graph.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/base/context.h"
#include "lockstep/dtype.h"
#include "lockstep/event.h"
#include "lockstep/ops/normalization.h"

namespace lockstep::cuda {

struct ActivationShape {
  std::int64_t rows = 0;  // N*H*W
  std::int64_t c = 0;     // channels
  DType dtype = DType::fp32;
};

/// z = act(scale*x + bias [+ r | + scale2*r + bias2]) into `z`, which may be x or the residual.
void normalize(const ActivationShape& shape, const InputNormalization& normalization, const void* x,
               const NormalizationForward& args, void* z, const CudaContext& context, Stream& stream);

/// `statistics` (2, C) fp64, overwritten: sum x, sum x^2. `workspace` of channel_sums_workspace_bytes(), 64-byte
/// aligned.
std::size_t channel_sums_workspace_bytes(const ActivationShape& shape, const CudaContext& context);
void channel_sums(const ActivationShape& shape, const void* x, double* statistics, void* workspace,
                  const CudaContext& context, Stream& stream);

/// dz = act'(z) * (data_gradient + added) into args.dz, and args.sums, args.residual_sums from it.
/// The ReLU's mask comes from `z` if it is not null; otherwise z is recomputed from x, scale, bias and residual.
/// args.dz may be data_gradient or args.added.
std::size_t normalize_backward_workspace_bytes(const ActivationShape& shape, const CudaContext& context);
void normalize_backward(const ActivationShape& shape, const InputNormalization& normalization, const void* x,
                        const NormalizationForward& forward, const void* z, const void* data_gradient,
                        const NormalizationBackward& args, void* workspace, const CudaContext& context, Stream& stream);

/// target += value, elementwise.
struct AddInto {
  std::size_t n_elements = 0;
  DType dtype = DType::fp32;
};
void add_into(const AddInto& shape, const void* value, void* target, const CudaContext& context, Stream& stream);

}  // namespace lockstep::cuda

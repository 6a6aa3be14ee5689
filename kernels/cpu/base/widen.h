// Conversions of bf16 tensors that are multiplied in fp32: to the other type, and to the layout of the kernel that
// multiplies them; and the addition of one tensor to another.
#pragma once

#include <cstdint>

#include "kernels/cpu/base/context.h"
#include "lockstep/bf16.h"
#include "lockstep/dtype.h"
#include "lockstep/op.h"

namespace lockstep::cpu {

/// Channels of a block of Layout::nchw16c.
inline constexpr std::int64_t kChannelBlock = 16;

/// Images of one size: (images, pixels, channels) in nhwc.
struct ImageRows {
  std::int64_t images = 0, pixels = 0, channels = 0;
  std::int64_t n_elements() const { return images * pixels * channels; }
};

void widen(const Bf16* from, float* to, std::int64_t n_elements, const CpuContext& context);
/// Rounds to the nearest, ties to even. With `accumulate`, the sum of both is rounded.
void narrow(const float* from, Bf16* to, std::int64_t n_elements, const CpuContext& context, bool accumulate = false);

/// sum = a + b, fp32 or bf16; it may be a or b.
void add(DType dtype, const void* a, const void* b, void* sum, std::int64_t n_elements, const CpuContext& context);
/// target += source.
inline void add_into(DType dtype, void* target, const void* source, std::size_t n_elements, const CpuContext& context) {
  add(dtype, target, source, target, static_cast<std::int64_t>(n_elements), context);
}

/// From nhwc to `layout`, and back. In nchw16c, the channels are a multiple of 16.
void widen(const ImageRows& shape, const Bf16* from, Layout layout, float* to, const CpuContext& context);
void narrow(const ImageRows& shape, Layout layout, const float* from, Bf16* to, const CpuContext& context);

}  // namespace lockstep::cpu

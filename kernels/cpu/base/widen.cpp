#include "kernels/cpu/base/widen.h"

#include "kernels/cpu/base/parallel.h"
#include "kernels/cpu/base/simd.h"

#define LOCKSTEP_KERNELS "kernels/cpu/base/widen_kernels.h"
#include "kernels/cpu/base/each_isa.h"

namespace lockstep::cpu {
namespace {

/// Calls work(range) for parts of [0, count), which have `size_bytes` in total.
template <typename Work>
void in_parts(std::int64_t count, std::int64_t size_bytes, const CpuContext& context, const Work& work) {
  run_ranges(part_count(context, size_bytes), count, work);
}

constexpr std::int64_t kBytesOfBoth = sizeof(Bf16) + sizeof(float);

}  // namespace

void widen(const Bf16* from, float* to, std::int64_t n_elements, const CpuContext& context) {
  in_parts(n_elements, n_elements * kBytesOfBoth, context, [&](Range range) {
    LOCKSTEP_DISPATCH(widen_elements)(from, to, range);
  });
}

void narrow(const float* from, Bf16* to, std::int64_t n_elements, const CpuContext& context, bool accumulate) {
  in_parts(n_elements, n_elements * kBytesOfBoth, context, [&](Range range) {
    if (accumulate)
      LOCKSTEP_DISPATCH(accumulate_elements)(from, to, range);
    else
      LOCKSTEP_DISPATCH(narrow_elements)(from, to, range);
  });
}

void add(DType dtype, const void* a, const void* b, void* sum, std::int64_t n_elements, const CpuContext& context) {
  with_elements(dtype, [&]<typename E>(E) {
    in_parts(n_elements, 3 * n_elements * std::int64_t{sizeof(E)}, context, [&](Range range) {
      LOCKSTEP_DISPATCH(add_elements<E, E>)
      (static_cast<const E*>(a), static_cast<const E*>(b), static_cast<E*>(sum), range);
    });
  });
}

void widen(const ImageRows& shape, const Bf16* from, Layout layout, float* to, const CpuContext& context) {
  if (layout == Layout::nhwc) return widen(from, to, shape.n_elements(), context);
  in_parts(shape.images * shape.pixels, shape.n_elements() * kBytesOfBoth, context, [&](Range pixels) {
    LOCKSTEP_DISPATCH(widen_to_blocks)(shape, from, to, pixels);
  });
}

void narrow(const ImageRows& shape, Layout layout, const float* from, Bf16* to, const CpuContext& context) {
  if (layout == Layout::nhwc) return narrow(from, to, shape.n_elements(), context);
  in_parts(shape.images * shape.pixels, shape.n_elements() * kBytesOfBoth, context, [&](Range pixels) {
    LOCKSTEP_DISPATCH(narrow_from_blocks)(shape, from, to, pixels);
  });
}

}  // namespace lockstep::cpu

// A few neighbouring bytes, one for each number of a thread's pack, which are loaded and stored together: Bytes<kN>,
// load_bytes<kN>(source) and store_bytes(target, values). 4 or 8 bytes must be aligned to their size; a single byte may
// be anywhere. Pooling keeps the positions of maxima in them.
#pragma once

#include <cstdint>

#include "kernels/cuda/base/launch.h"

namespace lockstep::cuda {

template <int kN>
struct Bytes {
  static_assert(kN == 4 || kN == 8);
  std::uint32_t words[kN / 4];
  __device__ int operator[](int i) const { return static_cast<int>(words[i / 4] >> (i % 4 * 8) & 0xff); }
};
template <>
struct Bytes<1> {
  std::uint8_t byte;
  __device__ int operator[](int) const { return byte; }
};
template <int kN>
__device__ inline Bytes<kN> load_bytes(const std::uint8_t* source) {
  if constexpr (kN == 1) {
    return {*source};
  } else if constexpr (kN == 4) {
    return {{*reinterpret_cast<const std::uint32_t*>(source)}};
  } else {
    const uint2 bits = *reinterpret_cast<const uint2*>(source);
    return {{bits.x, bits.y}};
  }
}
template <int kN>
__device__ inline void store_bytes(std::uint8_t* target, const int (&values)[kN]) {
  if constexpr (kN == 1) {
    *target = static_cast<std::uint8_t>(values[0]);
  } else {
    std::uint32_t words[kN / 4] = {};
#pragma unroll
    for (int i = 0; i < kN; ++i) words[i / 4] |= static_cast<std::uint32_t>(values[i]) << (i % 4 * 8);
    if constexpr (kN == 4)
      *reinterpret_cast<std::uint32_t*>(target) = words[0];
    else
      *reinterpret_cast<uint2*>(target) = make_uint2(words[0], words[1]);
  }
}

}  // namespace lockstep::cuda

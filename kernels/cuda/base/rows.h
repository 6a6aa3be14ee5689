// How passes walk over an activation, which is rows of C channels: a thread keeps a few neighbouring channels, whose
// coefficients and sums stay in its registers, and loops over rows. Neighbouring threads have neighbouring channels,
// then rows, so that a warp reads whole lines of memory.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "kernels/cuda/base/context.h"
#include "kernels/cuda/base/launch.h"
#include "kernels/cuda/base/numbers.h"

namespace lockstep::cuda {

/// kN neighbouring numbers as stored, until they are used: one pack (16 bytes), or one number if the number of channels
/// or a pointer does not allow that.
template <typename T, int kN>
struct Vector {
  static_assert(kN == Pack<T>::kSize);
  std::uint32_t words[4];

  __device__ float operator[](int i) const {
    if constexpr (sizeof(T) == 4) {
      return std::bit_cast<float>(words[i]);
    } else {
      const std::uint32_t word = words[i / 2];
      if constexpr (std::is_same_v<T, Bfloat16>)
        return std::bit_cast<float>(i % 2 == 0 ? word << 16 : word & 0xffff0000u);
      else
        return to_float(std::bit_cast<Half>(static_cast<std::uint16_t>(i % 2 == 0 ? word : word >> 16)));
    }
  }
};
template <typename T>
struct Vector<T, 1> {
  T value;
  __device__ float operator[](int) const { return to_float(value); }
};

template <int kN, typename T>
__device__ inline Vector<T, kN> load_vector(const T* source) {
  if constexpr (kN == 1) {
    return {*source};
  } else {
    const uint4 bits = *reinterpret_cast<const uint4*>(source);
    return {{bits.x, bits.y, bits.z, bits.w}};
  }
}

/// Zeros if there is no such tensor.
template <int kN, typename T>
__device__ inline Vector<T, kN> load_if_any(const T* tensor, std::int64_t offset) {
  if (tensor == nullptr) return {};
  return load_vector<kN>(tensor + offset);
}

/// kN numbers in registers.
template <int kN>
struct Floats {
  float values[kN];
  __device__ float& operator[](int i) { return values[i]; }
  __device__ float operator[](int i) const { return values[i]; }
};

template <int kN, typename T>
__device__ inline Floats<kN> load_floats(const T* source) {
  constexpr int kStep = kN == 1 ? 1 : Pack<T>::kSize;
  Floats<kN> floats;
#pragma unroll
  for (int first = 0; first < kN; first += kStep) {
    const Vector<T, kStep> part = load_vector<kStep>(source + first);
#pragma unroll
    for (int i = 0; i < kStep; ++i) floats[first + i] = part[i];
  }
  return floats;
}

/// Two 16-bit numbers, rounded to nearest, in 32 bits.
template <typename T>
__device__ inline std::uint32_t pack_two(float low, float high) {
  std::uint32_t word;
  if constexpr (std::is_same_v<T, Bfloat16>) {
    const __nv_bfloat162 two = __floats2bfloat162_rn(low, high);
    memcpy(&word, &two, sizeof(word));
  } else {
    const __half2 two = __floats2half2_rn(low, high);
    memcpy(&word, &two, sizeof(word));
  }
  return word;
}

/// One vector of T of the floats from `first` on.
template <typename T, int kN, int kFloats>
__device__ inline Vector<T, kN> round_floats(const Floats<kFloats>& floats, int first = 0) {
  Vector<T, kN> out;
  if constexpr (kN == 1) {
    out.value = from_float<T>(floats[first]);
  } else {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if constexpr (sizeof(T) == 4)
        out.words[i] = std::bit_cast<std::uint32_t>(floats[first + i]);
      else
        out.words[i] = pack_two<T>(floats[first + 2 * i], floats[first + 2 * i + 1]);
    }
  }
  return out;
}

/// To global memory only. A pack is one store of 16 bytes: of some assignments, nvcc would make four stores.
template <typename T, int kN>
__device__ inline void store_vector(T* target, const Vector<T, kN>& vector) {
  if constexpr (kN == 1) {
    *target = vector.value;
  } else {
#ifdef __CUDA_ARCH__
    asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(target), "r"(vector.words[0]), "r"(vector.words[1]),
                 "r"(vector.words[2]), "r"(vector.words[3])
                 : "memory");
#else
    memcpy(static_cast<void*>(target), &vector, sizeof(vector));
#endif
  }
}

/// To global memory only.
template <typename T, int kN>
__device__ inline void store_floats(T* target, const Floats<kN>& floats) {
  constexpr int kStep = kN == 1 ? 1 : Pack<T>::kSize;
#pragma unroll
  for (int first = 0; first < kN; first += kStep) store_vector(target + first, round_floats<T, kStep>(floats, first));
}

/// A block is `columns` vectors wide and `lanes` rows high; blockIdx.y counts the columns beyond its width, and blocks
/// take turns along the rows.
struct RowWalk {
  std::int64_t c = 0;
  unsigned columns = 1;
  unsigned lanes = 1;
  Grid grid;

  static constexpr unsigned kMaxColumns = 32;

  /// Walks over `rows` rows, with at most `limit` blocks if one row of blocks allows that. Each lane gets at least
  /// `least_rows` rows as long as there are enough.
  RowWalk(std::int64_t rows, std::int64_t c, int vector_size, unsigned threads, unsigned limit, unsigned least_rows,
          unsigned max_columns = kMaxColumns)
      : c(c) {
    const auto vectors = static_cast<unsigned>(c / vector_size);
    const unsigned tiles = (vectors + max_columns - 1) / max_columns;
    columns = (vectors + tiles - 1) / tiles;
    lanes = threads / columns;
    grid.threads = threads;
    grid.blocks_y = tiles;
    grid.blocks = blocks_for(static_cast<std::size_t>(rows), lanes * least_rows, std::max(limit / tiles, 1u));
  }
};

/// A thread's part of the grid: its first channel, its first row, and the distance between its rows.
template <int kN>
struct RowPlace {
  std::int64_t channel;
  std::int64_t row;
  std::int64_t row_step;
  unsigned column, lane;
  bool is_inside;  // threads beyond the width or the channels only take part in barriers

  __device__ explicit RowPlace(const RowWalk& walk)
      : column(threadIdx.x % walk.columns), lane(threadIdx.x / walk.columns) {
    channel = (std::int64_t{blockIdx.y} * walk.columns + column) * kN;
    row = std::int64_t{blockIdx.x} * walk.lanes + lane;
    row_step = std::int64_t{gridDim.x} * walk.lanes;
    is_inside = lane < walk.lanes && channel < walk.c;
  }
};

/// Adds the sums of the block's lanes, each of which is `columns` threads with kN sums, in the order of the lanes.
/// Calls f(i, total) for each of the columns * kN sums of a lane, in some thread. All threads of the block must call
/// this.
template <unsigned kThreads, int kN, typename F>
__device__ inline void add_lanes(const Floats<kN>& sum, unsigned columns, unsigned lanes, const F& f) {
  constexpr unsigned kStride = kN == 1 ? 1 : kN + 1;  // odd: threads next to each other use different banks
  __shared__ float of_threads[kThreads * kStride];
  __syncthreads();  // the previous call may still read it
#pragma unroll
  for (int i = 0; i < kN; ++i) of_threads[threadIdx.x * kStride + i] = sum[i];
  __syncthreads();
  for (unsigned i = threadIdx.x; i < columns * kN; i += kThreads) {
    const float* const first = of_threads + i / kN * kStride + i % kN;
    float total = 0;
    for (unsigned lane = 0; lane < lanes; ++lane) total += first[lane * columns * kStride];
    f(i, total);
  }
}

/// How many numbers a thread reads at a time: a pack where channels and pointers allow it.
template <typename T, typename... Pointers>
bool allows_packs(std::int64_t c, const Pointers*... pointers) {
  return c % Pack<T>::kSize == 0 && are_aligned(pointers...);
}

}  // namespace lockstep::cuda

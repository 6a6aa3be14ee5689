// Kernel of batch_norm.cpp for one instruction set (each_isa.h).

#include "kernels/cpu/normalization_tiles.h"

namespace lockstep::cpu::LOCKSTEP_ISA {

/// dx = dz_factor * dz + x_factor * (x - mean) + constant. Subtracting the mean first keeps the rounding of x_factor
/// from being multiplied by it.
template <typename E>
struct BatchNormBackwardBody {
  const BatchNormBackwardTask<E>& task;

  template <typename T, int kVectors>
  void tile(std::int64_t offset, std::int64_t stride, std::int64_t rows, std::int64_t column) const {
    T dz_factor[kVectors], x_factor[kVectors], mean[kVectors], constant[kVectors];
    for (int v = 0; v < kVectors; ++v) {
      const std::int64_t c = column + v * Lanes<T>::kCount;
      dz_factor[v] = load<T>(task.dz_factor + c);
      x_factor[v] = load<T>(task.x_factor + c);
      mean[v] = load<T>(task.mean + c);
      constant[v] = load<T>(task.constant + c);
    }
    for (std::int64_t row = 0; row < rows; ++row, offset += stride) {
      scalar_stays_scalar<T>();
      for (int v = 0; v < kVectors; ++v) {
        const std::int64_t i = offset + v * Lanes<T>::kCount;
        prefetch_ahead(task.dz + i);
        prefetch_ahead(task.x + i);
        const T centred = load<T>(task.x + i) - mean[v];
        store(task.dx + i, dz_factor[v] * load<T>(task.dz + i) + (x_factor[v] * centred + constant[v]));
      }
    }
  }
};

template <typename E>
void batch_norm_backward(const BatchNormBackwardTask<E>& task, const Tiling& tiling, Range range) {
  walk(tiling, range, BatchNormBackwardBody<E>{task});
}

}  // namespace lockstep::cpu::LOCKSTEP_ISA

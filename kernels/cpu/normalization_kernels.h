// Kernels of normalization.cpp for one instruction set (each_isa.h).

#include "kernels/cpu/normalization_tiles.h"
#include "lockstep/ops/normalization.h"

namespace lockstep::cpu::LOCKSTEP_ISA {

using Residual = InputNormalization::Residual;

/// Scale and bias of x and of the residual for one tile.
template <typename T, int kVectors, Residual kResidual>
struct Coefficients {
  T scale[kVectors], bias[kVectors], residual_scale[kVectors], residual_bias[kVectors];

  template <typename E>
  Coefficients(const NormalizeTask<E>& task, std::int64_t column) {
    for (int v = 0; v < kVectors; ++v) {
      const std::int64_t c = column + v * Lanes<T>::kCount;
      scale[v] = load<T>(task.scale + c);
      bias[v] = load<T>(task.bias + c);
      if constexpr (kResidual == Residual::normalized) {
        residual_scale[v] = load<T>(task.residual_scale + c);
        residual_bias[v] = load<T>(task.residual_bias + c);
      }
    }
  }
  /// z before the activation. Forward and backward share it, so that both see the same sign.
  T apply(int v, T x, T residual) const {
    T value = scale[v] * x + bias[v];
    if constexpr (kResidual == Residual::plain) value += residual;
    if constexpr (kResidual == Residual::normalized) value += residual_scale[v] * residual + residual_bias[v];
    return value;
  }
};

template <typename E, Residual kResidual, bool kRelu>
struct NormalizeBody {
  const NormalizeTask<E>& task;

  template <typename T, int kVectors>
  void tile(std::int64_t offset, std::int64_t stride, std::int64_t rows, std::int64_t column) const {
    const Coefficients<T, kVectors, kResidual> coefficients(task, column);
    for (std::int64_t row = 0; row < rows; ++row, offset += stride) {
      scalar_stays_scalar<T>();
      for (int v = 0; v < kVectors; ++v) {
        const std::int64_t i = offset + v * Lanes<T>::kCount;
        T residual{};
        if constexpr (kResidual != Residual::none) residual = load<T>(task.residual + i);
        const T value = coefficients.apply(v, load<T>(task.x + i), residual);
        store(task.z + i, kRelu ? relu(value) : value);
      }
    }
  }
};

template <Residual kResidual, typename E>
void normalize_residual(const NormalizeTask<E>& task, const Tiling& tiling, Range range) {
  if (task.relu)
    walk(tiling, range, NormalizeBody<E, kResidual, true>{task});
  else
    walk(tiling, range, NormalizeBody<E, kResidual, false>{task});
}

template <typename E>
void normalize(const NormalizeTask<E>& task, const Tiling& tiling, Range range) {
  switch (task.residual_kind) {
    case Residual::none:
      return normalize_residual<Residual::none>(task, tiling, range);
    case Residual::plain:
      return normalize_residual<Residual::plain>(task, tiling, range);
    case Residual::normalized:
      return normalize_residual<Residual::normalized>(task, tiling, range);
  }
}

template <typename E>
struct ChannelSumsBody {
  const E* x;
  double* sums;  // (2, width)
  std::int64_t width;

  template <typename T, int kVectors>
  void tile(std::int64_t offset, std::int64_t stride, std::int64_t rows, std::int64_t column) const {
    Widened<T> sum[kVectors], squares[kVectors];
    for (int v = 0; v < kVectors; ++v) {
      sum[v] = load<Widened<T>>(sums + column + v * Lanes<T>::kCount);
      squares[v] = load<Widened<T>>(sums + width + column + v * Lanes<T>::kCount);
    }
    for (std::int64_t row = 0; row < rows; ++row, offset += stride) {
      scalar_stays_scalar<T>();
      for (int v = 0; v < kVectors; ++v) {
        const Widened<T> value = widen(load<T>(x + offset + v * Lanes<T>::kCount));
        add(sum[v], value);
        add_product(squares[v], value, value);
      }
    }
    for (int v = 0; v < kVectors; ++v) {
      store(sums + column + v * Lanes<T>::kCount, sum[v]);
      store(sums + width + column + v * Lanes<T>::kCount, squares[v]);
    }
  }
};

template <typename E>
void channel_sums(const E* x, double* sums, const Tiling& tiling, Range range) {
  walk(tiling, range, ChannelSumsBody<E>{x, sums, tiling.width});
}

/// Where the ReLU's mask comes from.
enum class Mask { none, stored, recomputed };

/// Sums are of dz, dz * x and, for a normalised residual, dz * r; x_hat follows from them per channel.
template <typename E, Residual kResidual, Mask kMask, bool kAdded>
struct BackwardBody {
  const NormalizeBackwardTask<E>& task;
  double* sums;  // (3, width), two of them without normalised residual
  std::int64_t width;
  static constexpr bool kResidualSum = kResidual == Residual::normalized;
  static constexpr bool kReadResidual = kResidualSum || (kMask == Mask::recomputed && kResidual != Residual::none);

  template <typename T, int kVectors>
  void tile(std::int64_t offset, std::int64_t stride, std::int64_t rows, std::int64_t column) const {
    const Coefficients<T, kVectors, kResidual> coefficients(task.forward, column);
    Widened<T> sum[3][kVectors];
    for (int kind = 0; kind < (kResidualSum ? 3 : 2); ++kind)
      for (int v = 0; v < kVectors; ++v)
        sum[kind][v] = load<Widened<T>>(sums + kind * width + column + v * Lanes<T>::kCount);
    for (std::int64_t row = 0; row < rows; ++row, offset += stride) {
      scalar_stays_scalar<T>();
      for (int v = 0; v < kVectors; ++v) {
        const std::int64_t i = offset + v * Lanes<T>::kCount;
        prefetch_ahead(task.data_gradient + i);
        prefetch_ahead(task.forward.x + i);
        if constexpr (kAdded) prefetch_ahead(task.added + i);
        if constexpr (kReadResidual) prefetch_ahead(task.forward.residual + i);
        if constexpr (kMask == Mask::stored) prefetch_ahead(task.z + i);
        prefetch_ahead(task.dz + i);
        T dz = load<T>(task.data_gradient + i);
        if constexpr (kAdded) dz += load<T>(task.added + i);
        const T x = load<T>(task.forward.x + i);
        T residual{};
        if constexpr (kReadResidual) residual = load<T>(task.forward.residual + i);
        if constexpr (kMask == Mask::stored) dz = relu_backward(load<T>(task.z + i), dz);
        if constexpr (kMask == Mask::recomputed) dz = relu_backward(coefficients.apply(v, x, residual), dz);
        store(task.dz + i, dz);
        const Widened<T> wide = widen(dz);
        add(sum[0][v], wide);
        add_product(sum[1][v], wide, widen(x));
        if constexpr (kResidualSum) add_product(sum[2][v], wide, widen(residual));
      }
    }
    for (int kind = 0; kind < (kResidualSum ? 3 : 2); ++kind)
      for (int v = 0; v < kVectors; ++v) store(sums + kind * width + column + v * Lanes<T>::kCount, sum[kind][v]);
  }
};

template <Residual kResidual, Mask kMask, typename E>
void backward_mask(const NormalizeBackwardTask<E>& task, double* sums, const Tiling& tiling, Range range) {
  if (task.added)
    walk(tiling, range, BackwardBody<E, kResidual, kMask, true>{task, sums, tiling.width});
  else
    walk(tiling, range, BackwardBody<E, kResidual, kMask, false>{task, sums, tiling.width});
}

template <Residual kResidual, typename E>
void backward_residual(const NormalizeBackwardTask<E>& task, double* sums, const Tiling& tiling, Range range) {
  if (!task.forward.relu) return backward_mask<kResidual, Mask::none>(task, sums, tiling, range);
  if (task.z) return backward_mask<kResidual, Mask::stored>(task, sums, tiling, range);
  backward_mask<kResidual, Mask::recomputed>(task, sums, tiling, range);
}

template <typename E>
void normalize_backward(const NormalizeBackwardTask<E>& task, double* sums, const Tiling& tiling, Range range) {
  switch (task.forward.residual_kind) {
    case Residual::none:
      return backward_residual<Residual::none>(task, sums, tiling, range);
    case Residual::plain:  // read only to recompute z
      if (!task.forward.relu || task.z) return backward_residual<Residual::none>(task, sums, tiling, range);
      return backward_mask<Residual::plain, Mask::recomputed>(task, sums, tiling, range);
    case Residual::normalized:
      return backward_residual<Residual::normalized>(task, sums, tiling, range);
  }
}

}  // namespace lockstep::cpu::LOCKSTEP_ISA

// The input of a convolution or pooling: x itself, or a pending normalisation of x (lockstep/ops/normalization.h),
// evaluated wherever the loops read it, and the end of the backward pass through it. `T` is the stored type (float: the
// ReferenceBackend; double: finite differences); all intermediate values are double. All activations are (rows, C),
// where a row is a pixel in nhwc.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include "lockstep/op.h"
#include "lockstep/ops/normalization.h"

namespace lockstep::reference {

using Index = std::int64_t;

/// For activations with fewer elements, starting other threads costs more than it saves.
inline constexpr Index kParallelFrom = 4096;

template <typename T>
struct PendingForward {
  const T* scale_bias = nullptr;           // (2, C)
  const T* residual = nullptr;             // (rows, C)
  const T* residual_scale_bias = nullptr;  // (2, C)
  T* z = nullptr;                          // (rows, C), written if `store`
};

template <typename T>
struct PendingBackward {
  const T* mean_inverse_stddev = nullptr;           // (2, C)
  const T* residual_mean_inverse_stddev = nullptr;  // (2, C)
  const T* added = nullptr;                         // (rows, C) or null
  T* dz = nullptr;                                  // (rows, C), overwritten; may be `added`
  double* sums = nullptr;                           // (2, C), overwritten
  double* residual_sums = nullptr;                  // (2, C), overwritten
};

inline PendingForward<float> typed(const NormalizationForward& args) {
  return {args.scale_bias, static_cast<const float*>(args.residual), args.residual_scale_bias,
          static_cast<float*>(args.z)};
}
inline PendingBackward<float> typed(const NormalizationBackward& args) {
  return {args.mean_inverse_stddev,
          args.residual_mean_inverse_stddev,
          static_cast<const float*>(args.added),
          static_cast<float*>(args.dz),
          args.sums.as<double>(),
          args.residual_sums.as<double>()};
}

template <typename T>
struct Input {
  Index rows = 0;
  Index channels = 0;
  const T* x = nullptr;  // (rows, C)
  std::optional<InputNormalization> normalization;
  PendingForward<T> args;

  bool is_residual(InputNormalization::Residual kind) const { return normalization && normalization->residual == kind; }

  double before_activation(Index row, Index c) const {
    const Index i = row * channels + c;
    const double value = x[i];
    if (!normalization) return value;
    double z = double{args.scale_bias[c]} * value + double{args.scale_bias[channels + c]};
    if (is_residual(InputNormalization::Residual::plain)) z += args.residual[i];
    if (is_residual(InputNormalization::Residual::normalized))
      z += double{args.residual_scale_bias[c]} * args.residual[i] + double{args.residual_scale_bias[channels + c]};
    return z;
  }

  double operator()(Index row, Index c) const {
    const double z = before_activation(row, c);
    return normalization && normalization->relu ? std::max(z, 0.0) : z;
  }

  /// act'(z); 0 at 0, as in PyTorch.
  double activation_gradient(Index row, Index c) const {
    return normalization && normalization->relu && before_activation(row, c) <= 0.0 ? 0.0 : 1.0;
  }

  void store() const {
    if (!normalization || !normalization->store) return;
    for (Index row = 0; row < rows; ++row)
      for (Index c = 0; c < channels; ++c) args.z[row * channels + c] = static_cast<T>((*this)(row, c));
  }
};

template <typename T>
void put(T& target, double value, GradientMode mode) {
  if (mode == GradientMode::overwrite) target = static_cast<T>(value);
  if (mode == GradientMode::accumulate) target = static_cast<T>(target + value);
}

/// Ends a backward pass at its input. `data_gradient(row, g)` adds the gradient of the row's C values to g, which
/// starts at zero. The result is written to dx (according to its mode) without normalisation, and to dz with it. The
/// reductions are computed in the same pass, per block of rows and then over the blocks in order, so that the number of
/// threads does not matter.
template <typename T, typename DataGradient>
void input_backward(const Input<T>& input, const PendingBackward<T>& args, T* dx, GradientMode dx_mode,
                    DataGradient&& data_gradient) {
  constexpr Index kRowsPerBlock = 4;
  const Index channels = input.channels;
  const Index blocks = (input.rows + kRowsPerBlock - 1) / kRowsPerBlock;
  const bool residual_sums = input.is_residual(InputNormalization::Residual::normalized);
  std::vector<double> partial(static_cast<std::size_t>(input.normalization ? blocks * 4 * channels : 0));
#pragma omp parallel for schedule(dynamic) if (input.rows * channels >= kParallelFrom)
  for (Index block = 0; block < blocks; ++block) {
    std::vector<double> g(static_cast<std::size_t>(channels));
    double* sums = partial.data() + block * 4 * channels;  // sum dz, sum dz * x_hat, and sum dz * r_hat
    for (Index row = block * kRowsPerBlock; row < std::min(input.rows, (block + 1) * kRowsPerBlock); ++row) {
      std::fill(g.begin(), g.end(), 0.0);
      data_gradient(row, g.data());
      for (Index c = 0; c < channels; ++c) {
        const Index i = row * channels + c;
        const double data = g[static_cast<std::size_t>(c)];
        if (!input.normalization) {
          put(dx[i], data, dx_mode);
          continue;
        }
        const double dz = input.activation_gradient(row, c) * (data + (args.added ? double{args.added[i]} : 0.0));
        args.dz[i] = static_cast<T>(dz);
        sums[c] += dz;
        sums[channels + c] +=
            dz * (double{input.x[i]} - args.mean_inverse_stddev[c]) * args.mean_inverse_stddev[channels + c];
        if (residual_sums)
          sums[2 * channels + c] += dz * (double{input.args.residual[i]} - args.residual_mean_inverse_stddev[c]) *
                                    args.residual_mean_inverse_stddev[channels + c];
      }
    }
  }
  if (!input.normalization) return;
  std::fill(args.sums, args.sums + 2 * channels, 0.0);
  if (residual_sums) std::fill(args.residual_sums, args.residual_sums + 2 * channels, 0.0);
  for (Index block = 0; block < blocks; ++block) {
    const double* sums = partial.data() + block * 4 * channels;
    for (Index i = 0; i < 2 * channels; ++i) args.sums[i] += sums[i];
    for (Index c = 0; residual_sums && c < channels; ++c) {
      args.residual_sums[c] += sums[c];
      args.residual_sums[channels + c] += sums[2 * channels + c];
    }
  }
}

}  // namespace lockstep::reference

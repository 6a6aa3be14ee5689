// Batch norm in its parts, straight from the formulas of lockstep/ops/batch_norm.h (Ioffe and Szegedy, 2015, algorithm
// 1).
#pragma once

#include "lockstep/ops/batch_norm.h"
#include "test/reference/normalization.h"

namespace lockstep::reference {

template <typename T>
struct BatchNormFinalize {
  const double* statistics = nullptr;  // (2, C)
  const T* gamma = nullptr;            // (C)
  const T* beta = nullptr;             // (C)
  T* scale_bias = nullptr;             // (2, C)
  T* mean_inverse_stddev = nullptr;    // (2, C)
  T* batch_statistics = nullptr;       // (2, C) or null
  double batch_statistics_weight = 1;
  GradientMode batch_statistics_mode = GradientMode::overwrite;
};

template <typename T>
struct BatchNormFinalizeInference {
  const T* running_mean = nullptr;
  const T* running_variance = nullptr;
  const T* gamma = nullptr;
  const T* beta = nullptr;
  T* scale_bias = nullptr;
  T* mean_inverse_stddev = nullptr;  // null: not computed
};

template <typename T>
struct BatchNormBackward {
  const double* sums = nullptr;
  const double* local_sums = nullptr;
  const T* dz = nullptr;
  const T* x = nullptr;
  const T* gamma = nullptr;
  const T* mean_inverse_stddev = nullptr;
  T* dx = nullptr;
  T* dgamma = nullptr;
  T* dbeta = nullptr;
  GradientMode parameter_mode = GradientMode::overwrite;
};

// T: float or double
/// (2, C): sum x, sum x^2 over the rows.
template <typename T>
void batch_norm_statistics(const Shape& shape, const T* x, double* statistics);
template <typename T>
void batch_norm_finalize(const BatchNormDescription& d, const BatchNormFinalize<T>& args);
template <typename T>
void batch_norm_finalize_inference(const BatchNormDescription& d, const BatchNormFinalizeInference<T>& args);
template <typename T>
void batch_norm_backward(const BatchNormDescription& d, const BatchNormBackward<T>& args);

}  // namespace lockstep::reference

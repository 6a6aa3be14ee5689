#include "kernels/cpu/normalization.h"

#include <algorithm>
#include <cassert>

#include "kernels/cpu/base/simd.h"

namespace lockstep::cpu {

/// What the kernels read. Coefficients are already repeated (Tiling).
template <typename E>
struct NormalizeTask {
  InputNormalization::Residual residual_kind = InputNormalization::Residual::none;
  bool relu = true;
  const E* x = nullptr;
  const E* residual = nullptr;
  const float* scale = nullptr;  // (width), like the three below
  const float* bias = nullptr;
  const float* residual_scale = nullptr;
  const float* residual_bias = nullptr;
  E* z = nullptr;
};
template <typename E>
struct NormalizeBackwardTask {
  NormalizeTask<E> forward;
  const E* z = nullptr;  // null: recomputed
  const E* data_gradient = nullptr;
  const E* added = nullptr;  // may be null
  E* dz = nullptr;
};

}  // namespace lockstep::cpu

#define LOCKSTEP_KERNELS "kernels/cpu/normalization_kernels.h"
#include "kernels/cpu/base/each_isa.h"

namespace lockstep::cpu {
namespace {

/// Space for repeated coefficients. It is on the stack, since passes have no workspace for it.
struct RepeatedCoefficients {
  float scale[Tiling::kMaxRepeatedWidth], bias[Tiling::kMaxRepeatedWidth];
  float residual_scale[Tiling::kMaxRepeatedWidth], residual_bias[Tiling::kMaxRepeatedWidth];
};

template <typename E>
NormalizeTask<E> make_task(const Tiling& tiling, const InputNormalization& normalization, const void* x,
                           const NormalizationForward& args, void* z, RepeatedCoefficients& room) {
  const std::int64_t c = tiling.shape.c;
  NormalizeTask<E> task;
  task.residual_kind = normalization.residual;
  task.relu = normalization.relu;
  task.x = static_cast<const E*>(x);
  task.residual = static_cast<const E*>(args.residual);
  task.scale = tiling.repeated(args.scale_bias, room.scale);
  task.bias = tiling.repeated(args.scale_bias + c, room.bias);
  if (normalization.residual == InputNormalization::Residual::normalized) {
    task.residual_scale = tiling.repeated(args.residual_scale_bias, room.residual_scale);
    task.residual_bias = tiling.repeated(args.residual_scale_bias + c, room.residual_bias);
  }
  task.z = static_cast<E*>(z);
  return task;
}

constexpr int kStatisticsKinds = 2;  // sum x, sum x^2
constexpr int kBackwardKinds = 3;    // sum dz, sum dz * x, sum dz * r

// The number of parts depends on the tensors that a pass reads and writes; the pass and the size of its workspace must
// assume the same.
constexpr int kNormalizeTensors = 2;
constexpr int kStatisticsTensors = 1;
constexpr int kBackwardTensors = 3;

}  // namespace

void normalize(const ActivationShape& shape, const InputNormalization& normalization, const void* x,
               const NormalizationForward& args, void* z, const CpuContext& context) {
  const Tiling tiling(shape, context, kNormalizeTensors);
  RepeatedCoefficients room;
  with_elements(shape.dtype, [&]<typename E>(E) {
    const NormalizeTask<E> task = make_task<E>(tiling, normalization, x, args, z, room);
    run_ranges(tiling.parts, tiling.units, [&](Range range) { LOCKSTEP_DISPATCH(normalize<E>)(task, tiling, range); });
  });
}

std::size_t channel_sums_workspace_bytes(const ActivationShape& shape, const CpuContext& context) {
  return Tiling(shape, context, kStatisticsTensors).sums_bytes(kStatisticsKinds);
}

void channel_sums(const ActivationShape& shape, const void* x, double* statistics, void* workspace,
                  const CpuContext& context) {
  const Tiling tiling(shape, context, kStatisticsTensors);
  double* sums = static_cast<double*>(workspace);
  with_elements(shape.dtype, [&]<typename E>(E) {
    run_parts(tiling.parts, [&](int part) {
      double* mine = sums + static_cast<std::size_t>(part) * tiling.sums_a_part(kStatisticsKinds);
      std::fill_n(mine, tiling.sums_a_part(kStatisticsKinds), 0.0);
      LOCKSTEP_DISPATCH(channel_sums<E>)
      (static_cast<const E*>(x), mine, tiling, part_of(tiling.units, part, tiling.parts));
    });
  });
  for (int kind = 0; kind < kStatisticsKinds; ++kind)
    for (std::int64_t c = 0; c < shape.c; ++c)
      statistics[kind * shape.c + c] = tiling.total(sums, kStatisticsKinds, kind, c);
}

std::size_t normalize_backward_workspace_bytes(const ActivationShape& shape, const CpuContext& context) {
  return Tiling(shape, context, kBackwardTensors).sums_bytes(kBackwardKinds);
}

void normalize_backward(const ActivationShape& shape, const InputNormalization& normalization, const void* x,
                        const NormalizationForward& forward, const void* z, const void* data_gradient,
                        const NormalizationBackward& args, void* workspace, const CpuContext& context) {
  const Tiling tiling(shape, context, kBackwardTensors);
  RepeatedCoefficients room;
  double* sums = static_cast<double*>(workspace);
  with_elements(shape.dtype, [&]<typename E>(E) {
    NormalizeBackwardTask<E> task;
    task.forward = make_task<E>(tiling, normalization, x, forward, nullptr, room);
    task.z = static_cast<const E*>(z);
    task.data_gradient = static_cast<const E*>(data_gradient);
    task.added = static_cast<const E*>(args.added);
    task.dz = static_cast<E*>(args.dz);
    run_parts(tiling.parts, [&](int part) {
      double* mine = sums + static_cast<std::size_t>(part) * tiling.sums_a_part(kBackwardKinds);
      std::fill_n(mine, tiling.sums_a_part(kBackwardKinds), 0.0);
      LOCKSTEP_DISPATCH(normalize_backward<E>)(task, mine, tiling, part_of(tiling.units, part, tiling.parts));
    });
  });

  // sum dz * x_hat = inverse_stddev * (sum dz * x - mean * sum dz); in fp64, since the difference may suffer from
  // cancellation.
  const bool with_residual = normalization.residual == InputNormalization::Residual::normalized;
  auto *const sums_of_x = args.sums.as<double>(), *const sums_of_residual = args.residual_sums.as<double>();
  for (std::int64_t c = 0; c < shape.c; ++c) {
    const double sum_dz = tiling.total(sums, kBackwardKinds, 0, c);
    const auto with_hat = [&](int kind, const float* mean_inverse_stddev) {
      const double mean = mean_inverse_stddev[c], inverse_stddev = mean_inverse_stddev[shape.c + c];
      return inverse_stddev * (tiling.total(sums, kBackwardKinds, kind, c) - mean * sum_dz);
    };
    sums_of_x[c] = sum_dz;
    sums_of_x[shape.c + c] = with_hat(1, args.mean_inverse_stddev);
    if (with_residual) {
      sums_of_residual[c] = sum_dz;
      sums_of_residual[shape.c + c] = with_hat(2, args.residual_mean_inverse_stddev);
    }
  }
}

}  // namespace lockstep::cpu

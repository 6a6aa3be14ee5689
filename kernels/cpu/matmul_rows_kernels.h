// Kernels of matmul.cpp for a few rows, for one instruction set (each_isa.h).
#include "kernels/cpu/base/lane_sums.h"

namespace lockstep::cpu::LOCKSTEP_ISA {

/// kRows rows of x times kOutputs rows of the weight.
template <int kRows, int kOutputs, typename E, typename Y>
inline void multiply_block(const RowsTask<E, Y>& task, std::int64_t row, std::int64_t output) {
  const std::int64_t n = task.in_features;
  const E* const weight = task.weight + output * n;
  const float* const x = task.x + row * n;
  Floats sums[kRows][kOutputs] = {};
  std::int64_t c = 0;
  for (; c + kLanes <= n; c += kLanes) {
    Floats x_c[kRows];
    for (int r = 0; r < kRows; ++r) x_c[r] = load<Floats>(x + r * n + c);
    for (int o = 0; o < kOutputs; ++o) {
      const Floats w = load<Floats>(weight + o * n + c);
      for (int r = 0; r < kRows; ++r) sums[r][o] += x_c[r] * w;
    }
  }
  for (int r = 0; r < kRows; ++r)
    for (int o = 0; o < kOutputs; ++o) {
      float sum = lanes_total(sums[r][o]);
      for (std::int64_t i = c; i < n; ++i) sum += x[r * n + i] * to_float(weight[o * n + i]);
      if (task.bias != nullptr) sum += to_float(task.bias[output + o]);
      task.y[(row + r) * task.out_features + output + o] = from_float<Y>(sum);
    }
}

/// All rows of x times kOutputs rows of the weight, which stay in the first cache.
template <int kOutputs, typename E, typename Y>
inline void multiply_outputs(const RowsTask<E, Y>& task, std::int64_t output) {
  std::int64_t row = 0;
  for (; row + 4 <= task.rows; row += 4) multiply_block<4, kOutputs>(task, row, output);
  if (task.rows - row == 3) multiply_block<3, kOutputs>(task, row, output);
  if (task.rows - row == 2) multiply_block<2, kOutputs>(task, row, output);
  if (task.rows - row == 1) multiply_block<1, kOutputs>(task, row, output);
}

/// With up to four rows of x, memory is the bottleneck. The weight is then read row after row, since processors fetch
/// one long run of memory ahead, but not several short rows at once (AMD EPYC, one thread, rows of 576 bf16: 22 instead
/// of 11 GB/s). With more rows of x, multiplications are the bottleneck, and each x is read once for four outputs.
template <typename Task>
void multiply_rows(const Task& task, Range outputs) {
  std::int64_t output = outputs.begin;
  if (task.rows > 4)
    for (; output + 4 <= outputs.end; output += 4) multiply_outputs<4>(task, output);
  for (; output < outputs.end; ++output) multiply_outputs<1>(task, output);
}

}  // namespace lockstep::cpu::LOCKSTEP_ISA

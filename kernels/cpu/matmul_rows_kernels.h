// Kernels of matmul_rows.cpp for one instruction set (each_isa.h).

namespace lockstep::cpu::LOCKSTEP_ISA {

/// The sum of the lanes, pairwise.
inline float lanes_total(Floats v) {
  float values[kLanes];
  store((void*)values, v);
  for (int n = kLanes / 2; n > 0; n /= 2)
    for (int i = 0; i < n; ++i) values[i] += values[i + n];
  return values[0];
}

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
      // The next block, since the processor does not follow so many short rows by itself. A token of SmolLM-135M took
      // 10 % less processor time (AMD EPYC, AVX-512, one thread, median of 3 on a busy machine).
      if constexpr (kRows == 1) __builtin_prefetch(weight + (o + kOutputs) * n + c);
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

template <typename Task>
void multiply_rows(const Task& task, Range outputs) {
  std::int64_t output = outputs.begin;
  if (task.rows == 1)
    for (; output + 8 <= outputs.end; output += 8) multiply_block<1, 8>(task, 0, output);
  for (; output + 4 <= outputs.end; output += 4) multiply_outputs<4>(task, output);
  for (; output < outputs.end; ++output) multiply_outputs<1>(task, output);
}

}  // namespace lockstep::cpu::LOCKSTEP_ISA

// Kernels of linear_cross_entropy.cpp for one instruction set (each_isa.h).

namespace lockstep::cpu::LOCKSTEP_ISA {

/// The maximum of n numbers, or -infinity if n is 0. NaNs are ignored here, but show up in the sum.
inline float greatest_of(const float* values, std::int64_t n) {
  Floats greatest = broadcast<Floats>(-__builtin_inff());
  float last = -__builtin_inff();
  for_columns(n, [&](auto lanes, std::int64_t i) {
    using T = decltype(lanes);
    const T value = load<T>(values + i);
    if constexpr (sizeof(T) == sizeof(float))
      last = value > last ? value : last;
    else
      greatest = value > greatest ? value : greatest;
  });
  for (int i = 0; i < kLanes; ++i) last = greatest[i] > last ? greatest[i] : last;
  return last;
}

/// Replaces logits by e^(logit - greatest) if `stores`. Sums are fp32 within blocks of 64 vectors, and fp64 over these.
inline SoftmaxResult softmax_exponentials(const SoftmaxRow& row, bool stores) {
  // The prediction is the first of the largest logits.
  const float before = greatest_of(row.logits, row.target);
  const float after = greatest_of(row.logits + row.target, row.n - row.target);
  const float of_target = row.logits[row.target];
  SoftmaxResult result;
  result.greatest = before > after ? before : after;
  result.is_correct = of_target > before && of_target >= after;
  constexpr std::int64_t kBlock = std::int64_t{64} * kLanes;
  for (std::int64_t begin = 0; begin < row.n; begin += kBlock) {
    Floats sum{};
    float last = 0;
    float* const logits = row.logits + begin;
    for_columns(row.n - begin < kBlock ? row.n - begin : kBlock, [&](auto lanes, std::int64_t i) {
      using T = decltype(lanes);
      const T e = exponential(load<T>(logits + i) - result.greatest);
      if (stores) store(logits + i, e);
      if constexpr (sizeof(T) == sizeof(float))
        last += e;
      else
        sum += e;
    });
    result.sum += total(widen(sum)) + double{last};
  }
  return result;
}

/// gradients = factor * exponentials, which may be the same memory.
template <typename E>
void softmax_gradient(const SoftmaxRow& row, float factor, E* gradients) {
  for_columns(row.n, [&](auto lanes, std::int64_t i) {
    using T = decltype(lanes);
    store(gradients + i, load<T>(row.logits + i) * factor);
  });
}

}  // namespace lockstep::cpu::LOCKSTEP_ISA

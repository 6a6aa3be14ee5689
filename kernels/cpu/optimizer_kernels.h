// Kernels of optimizer.cpp for one instruction set (each_isa.h).
#include "kernels/cpu/clip_norm_kernels.h"  // sum_of_squares

namespace lockstep::cpu::LOCKSTEP_ISA {

/// Stores new parameters, and with kWeights the same in bf16.
template <bool kWeights, typename Task, typename T>
inline void store_parameters(const Task& task, std::size_t i, T parameters) {
  store(task.parameters + i, parameters);
  if constexpr (kWeights) store(task.weights + i, parameters);
}

/// Elements [i, i + lanes of T).
template <typename T, bool kMomentum, bool kNesterov, bool kWeights>
inline void sgd_at(const SgdTask& task, std::size_t i) {
  T w = load<T>(task.parameters + i);
  T g = load<T>(task.gradients + i) * task.clip_coefficient + task.weight_decay * w;
  if constexpr (kMomentum) {
    const T velocity = task.momentum * load<T>(task.velocity + i) + g;
    store(task.velocity + i, velocity);
    g = kNesterov ? g + task.momentum * velocity : velocity;
  }
  store_parameters<kWeights>(task, i, w - task.learning_rate * g);
}

template <bool kMomentum, bool kNesterov, bool kWeights>
void sgd_range(const SgdTask& task, std::size_t begin, std::size_t end) {
  std::size_t i = begin;
  for (; i + kLanes <= end; i += kLanes) sgd_at<Floats, kMomentum, kNesterov, kWeights>(task, i);
  for (; i < end; ++i) sgd_at<float, kMomentum, kNesterov, kWeights>(task, i);
}

template <bool kWeights>
void sgd_of_kind(const SgdTask& task, std::size_t begin, std::size_t end) {
  if (task.momentum == 0.0f) return sgd_range<false, false, kWeights>(task, begin, end);
  if (task.nesterov) return sgd_range<true, true, kWeights>(task, begin, end);
  sgd_range<true, false, kWeights>(task, begin, end);
}

inline void sgd(const SgdTask& task, std::size_t begin, std::size_t end) {
  task.weights ? sgd_of_kind<true>(task, begin, end) : sgd_of_kind<false>(task, begin, end);
}

/// Random bits for `n` groups of eight elements.
inline void fill_random_bits(std::uint32_t seed, std::uint32_t step, std::size_t first, std::size_t n,
                             RoundedValue value, std::uint32_t* out) {
  for (std::size_t g = 0; g < n; ++g) {
    const std::array<std::uint32_t, 4> bits = random_bits(seed, step, first + g, value);
    for (std::size_t j = 0; j < 4; ++j) out[4 * g + j] = bits[j];
  }
}

/// fp32 is stored as it is, and bf16 is rounded stochastically.
template <typename T>
inline void store_state(float* p, T value, const std::uint16_t*) {
  store(p, value);
}
inline void store_state(Bf16* p, float value, const std::uint16_t* random) {
  p->bits = round_stochastically(value, *random);
}
inline void store_state(Bf16* p, Floats value, const std::uint16_t* random) {
  const Ints in_upper_half = (Ints)load<Floats>(reinterpret_cast<const Bf16*>(random));
  store_bits(p, ((Ints)value + (in_upper_half >> 16 & 0xffff)) >> 16);
}

/// G and M: the types of gradients and moments. Without kMasters, the weights are the parameters.
template <typename T, typename G, typename M, bool kMasters, bool kWeights>
inline void adamw_at(const AdamwTask& task, std::size_t i) {
  M *const first = static_cast<M*>(task.first_moment) + i, *const second = static_cast<M*>(task.second_moment) + i;
  T w;
  if constexpr (kMasters)
    w = load<T>(task.parameters + i) * task.keep;
  else
    w = load<T>(task.weights + i) * task.keep;
  const T g = load<T>(static_cast<const G*>(task.gradients) + i) * task.clip_coefficient;
  T m = load<T>(first);
  m = m + task.one_minus_beta1 * (g - m);
  const T v = task.beta2 * load<T>(second) + (task.one_minus_beta2 * g) * g;
  const T denominator = square_root(v) * task.root_correction2 + task.epsilon;
  store_state(first, m, task.random_of(RoundedValue::first_moment) + i);
  store_state(second, v, task.random_of(RoundedValue::second_moment) + i);
  w = w - task.step_size * (m / denominator);
  if constexpr (kMasters)
    store_parameters<kWeights>(task, i, w);
  else
    store_state(task.weights + i, w, task.random_of(RoundedValue::weight) + i);
}

template <typename G, typename M, bool kMasters, bool kWeights>
void adamw_range(const AdamwTask& task, std::size_t n) {
  std::size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) adamw_at<Floats, G, M, kMasters, kWeights>(task, i);
  for (; i < n; ++i) adamw_at<float, G, M, kMasters, kWeights>(task, i);
}

template <typename G, typename M>
void adamw(const AdamwTask& task, std::size_t n) {
  if (!task.parameters) return adamw_range<G, M, false, true>(task, n);
  task.weights ? adamw_range<G, M, true, true>(task, n) : adamw_range<G, M, true, false>(task, n);
}

}  // namespace lockstep::cpu::LOCKSTEP_ISA

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

template <typename T, bool kWeights>
inline void adamw_at(const AdamwTask& task, std::size_t i) {
  const T w = load<T>(task.parameters + i) * task.keep;
  const T g = load<T>(task.gradients + i) * task.clip_coefficient;
  T m = load<T>(task.first_moment + i);
  m = m + task.one_minus_beta1 * (g - m);
  const T v = task.beta2 * load<T>(task.second_moment + i) + (task.one_minus_beta2 * g) * g;
  const T denominator = square_root(v) * task.root_correction2 + task.epsilon;
  store(task.first_moment + i, m);
  store(task.second_moment + i, v);
  store_parameters<kWeights>(task, i, w - task.step_size * (m / denominator));
}

template <bool kWeights>
void adamw_range(const AdamwTask& task, std::size_t begin, std::size_t end) {
  std::size_t i = begin;
  for (; i + kLanes <= end; i += kLanes) adamw_at<Floats, kWeights>(task, i);
  for (; i < end; ++i) adamw_at<float, kWeights>(task, i);
}

inline void adamw(const AdamwTask& task, std::size_t begin, std::size_t end) {
  task.weights ? adamw_range<true>(task, begin, end) : adamw_range<false>(task, begin, end);
}

}  // namespace lockstep::cpu::LOCKSTEP_ISA

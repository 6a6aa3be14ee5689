// Kernels of rms_norm.cpp for one instruction set (each_isa.h). Sums over a row are fp64.

namespace lockstep::cpu::LOCKSTEP_ISA {

template <typename E>
void rms_norm_forward(const RmsNormForwardTask<E>& task, Range rows) {
  for (std::int64_t row = rows.begin; row < rows.end; ++row) {
    const std::int64_t begin = row * task.width;
    Widened<Floats> squares{};
    Widened<float> last_squares{};
    for_columns(task.width, [&](auto lanes, std::int64_t c) {
      using T = decltype(lanes);
      T s = load<T>(task.x + begin + c);
      if (task.residual != nullptr) {
        store(task.s + begin + c, s + load<T>(task.residual + begin + c));
        s = load<T>(task.s + begin + c);  // as backward reads it
      }
      if constexpr (sizeof(T) == sizeof(float))
        add_product(last_squares, widen(s), widen(s));
      else
        add_product(squares, widen(s), widen(s));
    });
    const double mean = (total(squares) + last_squares.value) / static_cast<double>(task.width);
    const auto inverse_rms = static_cast<float>(1.0 / __builtin_sqrt(mean + double{task.epsilon}));
    if (task.inverse_rms != nullptr) task.inverse_rms[row] = inverse_rms;
    const E* const s = (task.residual != nullptr ? task.s : task.x) + begin;
    for_columns(task.width, [&](auto lanes, std::int64_t c) {
      using T = decltype(lanes);
      store(task.y + begin + c, load<T>(s + c) * inverse_rms * load<T>(task.weight + c));
    });
  }
}

/// `dweight`: (width), overwritten by the sum over these rows of dy * s_hat; null: not computed.
template <typename E>
void rms_norm_backward(const RmsNormBackwardTask<E>& task, Range rows, float* dweight) {
  if (dweight != nullptr) std::memset(dweight, 0, static_cast<std::size_t>(task.width) * sizeof(float));
  for (std::int64_t row = rows.begin; row < rows.end; ++row) {
    const std::int64_t begin = row * task.width;
    const float inverse_rms = task.inverse_rms[row];
    Widened<Floats> products{};
    Widened<float> last_products{};
    for_columns(task.width, [&](auto lanes, std::int64_t c) {
      using T = decltype(lanes);
      const T dy = load<T>(task.dy + begin + c), s_hat = load<T>(task.s + begin + c) * inverse_rms;
      if (dweight != nullptr) store(dweight + c, load<T>(dweight + c) + dy * s_hat);
      if constexpr (sizeof(T) == sizeof(float))
        add_product(last_products, widen(load<T>(task.weight + c) * dy), widen(s_hat));
      else
        add_product(products, widen(load<T>(task.weight + c) * dy), widen(s_hat));
    });
    if (task.ds == nullptr) continue;
    const auto mean = static_cast<float>((total(products) + last_products.value) / static_cast<double>(task.width));
    for_columns(task.width, [&](auto lanes, std::int64_t c) {
      using T = decltype(lanes);
      const T s_hat = load<T>(task.s + begin + c) * inverse_rms;
      T ds = inverse_rms * (load<T>(task.weight + c) * load<T>(task.dy + begin + c) - s_hat * mean);
      if (task.added != nullptr) ds = ds + load<T>(task.added + begin + c);
      store(task.ds + begin + c, task.accumulate ? load<T>(task.ds + begin + c) + ds : ds);
    });
  }
}

}  // namespace lockstep::cpu::LOCKSTEP_ISA

// Kernels of rms_norm.cpp for one instruction set (each_isa.h). Sums over a row are fp64.

namespace lockstep::cpu::LOCKSTEP_ISA {

/// `saved`: inverse_rms of each row; null: not kept.
template <typename E>
void rms_norm_forward(const RmsNormDescription& d, const RmsNorm::Forward& args, float* saved, Range rows) {
  for (std::int64_t row = rows.begin; row < rows.end; ++row) {
    const E* const x = static_cast<const E*>(args.x) + row * d.width;
    const E* const residual = d.residual ? static_cast<const E*>(args.residual) + row * d.width : nullptr;
    E* const sum = d.residual ? static_cast<E*>(args.s) + row * d.width : nullptr;
    E* const y = static_cast<E*>(args.y) + row * d.width;
    ProductSum squares;
    for_columns(d.width, [&](auto lanes, std::int64_t c) {
      using T = decltype(lanes);
      T s = load<T>(x + c);
      if (residual != nullptr) {
        store(sum + c, s + load<T>(residual + c));
        s = load<T>(sum + c);  // as backward reads it
      }
      squares.add(s, s);
    });
    const double mean = squares.value() / static_cast<double>(d.width);
    const auto inverse_rms = static_cast<float>(1.0 / __builtin_sqrt(mean + double{d.epsilon}));
    if (saved != nullptr) saved[row] = inverse_rms;
    const E* const s = residual != nullptr ? sum : x;
    for_columns(d.width, [&](auto lanes, std::int64_t c) {
      using T = decltype(lanes);
      store(y + c, load<T>(s + c) * inverse_rms * load<T>(args.weight + c));
    });
  }
}

/// `dweight`: (width), overwritten by the sum over these rows of dy * s_hat; null: not computed.
template <typename E>
void rms_norm_backward(const RmsNormDescription& d, const RmsNorm::Backward& args, const float* saved, Range rows,
                       float* dweight) {
  if (dweight != nullptr) std::memset(dweight, 0, static_cast<std::size_t>(d.width) * sizeof(float));
  for (std::int64_t row = rows.begin; row < rows.end; ++row) {
    const E* const dy = static_cast<const E*>(args.dy) + row * d.width;
    const E* const s = static_cast<const E*>(args.s) + row * d.width;
    const E* const added = args.added != nullptr ? static_cast<const E*>(args.added) + row * d.width : nullptr;
    const float inverse_rms = saved[row];
    ProductSum products;
    for_columns(d.width, [&](auto lanes, std::int64_t c) {
      using T = decltype(lanes);
      const T dy_c = load<T>(dy + c), s_hat = load<T>(s + c) * inverse_rms;
      if (dweight != nullptr) store(dweight + c, load<T>(dweight + c) + dy_c * s_hat);
      products.add(load<T>(args.weight + c) * dy_c, s_hat);
    });
    if (args.ds_mode == GradientMode::skip) continue;
    E* const ds = static_cast<E*>(args.ds) + row * d.width;
    const auto mean = static_cast<float>(products.value() / static_cast<double>(d.width));
    for_columns(d.width, [&](auto lanes, std::int64_t c) {
      using T = decltype(lanes);
      const T s_hat = load<T>(s + c) * inverse_rms;
      T ds_c = inverse_rms * (load<T>(args.weight + c) * load<T>(dy + c) - s_hat * mean);
      if (added != nullptr) ds_c = ds_c + load<T>(added + c);
      store(ds + c, args.ds_mode == GradientMode::accumulate ? load<T>(ds + c) + ds_c : ds_c);
    });
  }
}

}  // namespace lockstep::cpu::LOCKSTEP_ISA

// Kernels of rotary.cpp for one instruction set (each_isa.h).

namespace lockstep::cpu::LOCKSTEP_ISA {

template <typename E>
inline void load_head(const E* source, const RotaryDescription& shape, RotaryHead& head) {
  const std::int64_t n_pairs = shape.head_dim / 2;
  if (shape.pairs == RotaryPairs::half_split) {
    for_columns(n_pairs, [&](auto lanes, std::int64_t i) {
      using T = decltype(lanes);
      store(head.first + i, load<T>(source + i));
      store(head.second + i, load<T>(source + n_pairs + i));
    });
    return;
  }
  for (std::int64_t i = 0; i < n_pairs; ++i) {
    head.first[i] = to_float(source[2 * i]);
    head.second[i] = to_float(source[2 * i + 1]);
  }
}

template <typename E>
inline void store_head(const RotaryHead& head, const RotaryDescription& shape, bool accumulate, E* target) {
  const std::int64_t n_pairs = shape.head_dim / 2;
  if (shape.pairs == RotaryPairs::half_split) {
    for_columns(n_pairs, [&](auto lanes, std::int64_t i) {
      using T = decltype(lanes);
      const T first = load<T>(head.first + i), second = load<T>(head.second + i);
      store(target + i, accumulate ? load<T>(target + i) + first : first);
      store(target + n_pairs + i, accumulate ? load<T>(target + n_pairs + i) + second : second);
    });
    return;
  }
  for (std::int64_t i = 0; i < n_pairs; ++i) {
    E* const pair = target + 2 * i;
    pair[0] = from_float<E>(accumulate ? to_float(pair[0]) + head.first[i] : head.first[i]);
    pair[1] = from_float<E>(accumulate ? to_float(pair[1]) + head.second[i] : head.second[i]);
  }
}

/// Rotates a head by the angles of a row of the table, or by the opposite angles.
template <bool kBack>
inline void rotate(RotaryHead& head, const float* cosines, std::int64_t n_pairs) {
  const float* const sines = cosines + n_pairs;
  for_columns(n_pairs, [&](auto lanes, std::int64_t i) {
    using T = decltype(lanes);
    const T cosine = load<T>(cosines + i), sine = kBack ? -load<T>(sines + i) : load<T>(sines + i);
    const T first = load<T>(head.first + i), second = load<T>(head.second + i);
    store(head.first + i, first * cosine - second * sine);
    store(head.second + i, second * cosine + first * sine);
  });
}

/// The mean over a head of a * b.
inline double mean_product(const RotaryHead& a, const RotaryHead& b, std::int64_t n_pairs) {
  ProductSum products;
  for_columns(n_pairs, [&](auto lanes, std::int64_t i) {
    using T = decltype(lanes);
    products.add(load<T>(a.first + i), load<T>(b.first + i));
    products.add(load<T>(a.second + i), load<T>(b.second + i));
  });
  return products.value() / static_cast<double>(2 * n_pairs);
}

/// Replaces a head by n, and returns 1 / sqrt(mean of squares + epsilon).
inline float normalize(RotaryHead& head, std::int64_t n_pairs, float epsilon) {
  const auto inverse_rms =
      static_cast<float>(1.0 / __builtin_sqrt(mean_product(head, head, n_pairs) + double{epsilon}));
  for_columns(n_pairs, [&](auto lanes, std::int64_t i) {
    using T = decltype(lanes);
    store(head.first + i, load<T>(head.first + i) * inverse_rms);
    store(head.second + i, load<T>(head.second + i) * inverse_rms);
  });
  return inverse_rms;
}

inline void multiply(RotaryHead& head, const RotaryHead& by, std::int64_t n_pairs) {
  for_columns(n_pairs, [&](auto lanes, std::int64_t i) {
    using T = decltype(lanes);
    store(head.first + i, load<T>(head.first + i) * load<T>(by.first + i));
    store(head.second + i, load<T>(head.second + i) * load<T>(by.second + i));
  });
}

inline void add_to_all(RotaryHead& head, float value, std::int64_t n_pairs) {
  for_columns(n_pairs, [&](auto lanes, std::int64_t i) {
    using T = decltype(lanes);
    store(head.first + i, load<T>(head.first + i) + value);
    store(head.second + i, load<T>(head.second + i) + value);
  });
}

/// dz becomes dx; dweight += dz * n.
inline void normalize_backward(RotaryHead& gradient, const RotaryHead& n, float inverse_rms, const RotaryHead& weight,
                               std::int64_t n_pairs, RotaryHead& dweight) {
  for_columns(n_pairs, [&](auto lanes, std::int64_t i) {
    using T = decltype(lanes);
    store(dweight.first + i, load<T>(dweight.first + i) + load<T>(gradient.first + i) * load<T>(n.first + i));
    store(dweight.second + i, load<T>(dweight.second + i) + load<T>(gradient.second + i) * load<T>(n.second + i));
  });
  multiply(gradient, weight, n_pairs);
  const auto mean = static_cast<float>(mean_product(gradient, n, n_pairs));
  for_columns(n_pairs, [&](auto lanes, std::int64_t i) {
    using T = decltype(lanes);
    store(gradient.first + i, inverse_rms * (load<T>(gradient.first + i) - load<T>(n.first + i) * mean));
    store(gradient.second + i, inverse_rms * (load<T>(gradient.second + i) - load<T>(n.second + i) * mean));
  });
}

template <typename E>
inline void copy_values(const E* source, std::int64_t n, bool accumulate, E* target) {
  if (source == target) return;
  for_columns(n, [&](auto lanes, std::int64_t i) {
    using T = decltype(lanes);
    store(target + i, accumulate ? load<T>(target + i) + load<T>(source + i) : load<T>(source + i));
  });
}

/// Without `dy`, this is forward, and dx is y. `dweights`: (2, head_dim), overwritten by the sums over these rows;
/// null: no norm, or forward.
template <typename E>
void rotary_pass(const RotaryDescription& s, const Rotary::Backward& args, Range rows, float* dweights) {
  const std::int64_t n_pairs = s.head_dim / 2;
  RotaryHead weights[2], sums[2], head, n;
  for (int kind = 0; s.norm && kind < 2; ++kind) {
    load_head(kind == 0 ? args.q_norm : args.k_norm, s, weights[kind]);
    if (s.weight_offset != 0) add_to_all(weights[kind], s.weight_offset, n_pairs);
    std::memset(&sums[kind], 0, sizeof sums[kind]);
  }
  const E* const x = static_cast<const E*>(args.x);
  const E* const in = args.dy != nullptr ? static_cast<const E*>(args.dy) : x;
  E* const out = args.dx_mode != GradientMode::skip ? static_cast<E*>(args.dx) : nullptr;
  const bool accumulate = args.dx_mode == GradientMode::accumulate;
  for (std::int64_t row = rows.begin; row < rows.end; ++row) {
    const std::int64_t position = std::clamp<std::int64_t>(args.positions[row], 0, s.max_positions - 1);
    const float* const cosines = args.table + position * s.head_dim;
    const std::int64_t begin = row * s.row_size();
    for (std::int64_t h = 0; h < s.heads + s.kv_heads; ++h) {
      const std::int64_t at = begin + h * s.head_dim;
      const int kind = h < s.heads ? 0 : 1;
      load_head(in + at, s, head);
      if (args.dy == nullptr) {
        if (s.norm) {
          normalize(head, n_pairs, s.epsilon);
          multiply(head, weights[kind], n_pairs);
        }
        rotate<false>(head, cosines, n_pairs);
      } else {
        rotate<true>(head, cosines, n_pairs);
        if (s.norm) {
          load_head(x + at, s, n);
          const float inverse_rms = normalize(n, n_pairs, s.epsilon);
          normalize_backward(head, n, inverse_rms, weights[kind], n_pairs, sums[kind]);
        }
      }
      if (out != nullptr) store_head(head, s, accumulate, out + at);
    }
    if (out == nullptr) continue;
    const std::int64_t values = begin + (s.heads + s.kv_heads) * s.head_dim;
    copy_values(in + values, s.kv_heads * s.head_dim, accumulate, out + values);
  }
  if (dweights == nullptr) return;
  for (int kind = 0; kind < 2; ++kind) store_head(sums[kind], s, false, dweights + kind * s.head_dim);
}

}  // namespace lockstep::cpu::LOCKSTEP_ISA

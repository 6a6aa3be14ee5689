// Kernels of pool2d.cpp for one instruction set (each_isa.h): one vector of channels of one pixel at a time.

namespace lockstep::cpu::LOCKSTEP_ISA {

/// Reads the input of `kLanes` (or one) channels, normalised on the way.
template <typename T, PoolInput kInput, typename Types>
struct PoolReader {
  const PoolTask<Types>& task;
  T scale{}, bias{}, residual_scale{}, residual_bias{}, lower_bound{};

  PoolReader(const PoolTask<Types>& task, std::int64_t c) : task(task) {
    if constexpr (kInput == PoolInput::direct) return;
    const NormalizationForward& n = task.normalization;
    scale = load<T>(n.scale_bias + c);
    bias = load<T>(n.scale_bias + task.geometry.c + c);
    if constexpr (kInput == PoolInput::residual_normalized) {
      residual_scale = load<T>(n.residual_scale_bias + c);
      residual_bias = load<T>(n.residual_scale_bias + task.geometry.c + c);
    }
    lower_bound = broadcast<T>(task.lower_bound);
  }
  T operator()(std::int64_t offset) const {
    T value = load<T>(task.x + offset);
    if constexpr (kInput == PoolInput::direct) return value;
    value = scale * value + bias;
    const auto* const residual = static_cast<const typename Types::X*>(task.normalization.residual);
    if constexpr (kInput == PoolInput::residual_plain) value += load<T>(residual + offset);
    if constexpr (kInput == PoolInput::residual_normalized)
      value += residual_scale * load<T>(residual + offset) + residual_bias;
    return value < lower_bound ? lower_bound : value;
  }
};

template <typename T, PoolInput kInput, typename Types>
void max_pixel(const PoolTask<Types>& task, std::int64_t n, std::int64_t p, std::int64_t q, std::int64_t c) {
  using Integers = typename Lanes<T>::Integers;
  const PoolGeometry& g = task.geometry;
  const PoolReader<T, kInput, Types> read(task, c);
  const std::int64_t x_base = g.x_base(n, c), h0 = p * g.stride - g.padding, w0 = q * g.stride - g.padding;
  const Range rows = g.rows[p], columns = g.columns[q];
  T best = broadcast<T>(-__builtin_inff());
  Integers index = Integers{} + static_cast<std::int32_t>((rows.begin - h0) * g.window_w + columns.begin - w0);
  for (std::int64_t h = rows.begin; h < rows.end; ++h)
    for (std::int64_t w = columns.begin; w < columns.end; ++w) {
      const T value = read(x_base + (h * g.w + w) * g.x_stride);
      const auto greater = (value > best) | (value != value);
      best = greater ? value : best;
      index = greater ? Integers{} + static_cast<std::int32_t>((h - h0) * g.window_w + w - w0) : index;
    }
  const std::int64_t out = g.y_base(n, c) + (p * g.out_w + q) * g.y_stride;
  store(task.y + out, best);
  if (task.saved) store_bytes(task.saved + out, index);
}

template <typename T, PoolInput kInput, typename Types>
void average_pixel(const PoolTask<Types>& task, std::int64_t n, std::int64_t p, std::int64_t q, std::int64_t c) {
  const PoolGeometry& g = task.geometry;
  const PoolReader<T, kInput, Types> read(task, c);
  const std::int64_t x_base = g.x_base(n, c);
  const Range rows = g.rows[p], columns = g.columns[q];
  Widened<T> sum{};
  for (std::int64_t h = rows.begin; h < rows.end; ++h)
    for (std::int64_t w = columns.begin; w < columns.end; ++w)
      add(sum, widen(read(x_base + (h * g.w + w) * g.x_stride)));
  double sums[Lanes<T>::kCount];
  std::memcpy(sums, &sum, sizeof sums);
  const double count = static_cast<double>((rows.end - rows.begin) * (columns.end - columns.begin));
  auto* y = task.y + g.y_base(n, c) + (p * g.out_w + q) * g.y_stride;
  for (int i = 0; i < Lanes<T>::kCount; ++i) store(y + i, static_cast<float>(sums[i] / count));
}

/// The gradient of y: that of one reader, or the sum of those of two readers, rounded as if it had been stored.
template <typename T, typename Types>
T output_gradient(const PoolBackwardTask<Types>& task, std::int64_t offset) {
  using Y = typename Types::Y;
  const T dy = load<T>(task.dy + offset);
  if (task.added == nullptr) return dy;
  Y sum[Lanes<T>::kCount];
  store(sum, dy + load<T>(task.added + offset));
  return load<T>(sum);
}

/// dx of pixel (h, w), gathered from all windows over it, in their order.
template <typename T, bool kMax, bool kAccumulate, typename Types>
void gather_pixel(const PoolBackwardTask<Types>& task, std::int64_t n, std::int64_t h, std::int64_t w, std::int64_t c) {
  using Integers = typename Lanes<T>::Integers;
  const PoolGeometry& g = task.geometry;
  const Range rows = g.windows_over_row[h], columns = g.windows_over_column[w];
  const std::int64_t y_base = g.y_base(n, c);
  T gradient{};
  for (std::int64_t p = rows.begin; p < rows.end; ++p)
    for (std::int64_t q = columns.begin; q < columns.end; ++q) {
      const std::int64_t out = y_base + (p * g.out_w + q) * g.y_stride;
      const T dy = output_gradient<T>(task, out);
      if constexpr (kMax) {
        const std::int64_t position = (h + g.padding - p * g.stride) * g.window_w + w + g.padding - q * g.stride;
        const Integers index = load_bytes(task.saved + out, Integers{});
        gradient += index == Integers{} + static_cast<std::int32_t>(position) ? dy : T{};
      } else {
        const Range under_rows = g.rows[p], under_columns = g.columns[q];
        const auto count = (under_rows.end - under_rows.begin) * (under_columns.end - under_columns.begin);
        gradient += dy / static_cast<float>(count);
      }
    }
  auto* dx = task.dx + g.x_base(n, c) + (h * g.w + w) * g.x_stride;
  store(dx, kAccumulate ? load<T>(dx) + gradient : gradient);
}

/// Calls at(T{}, n, row, column, channel) over units [range): images' rows in nhwc, 16 channels of an image in nchw16c.
template <typename F>
void walk_pixels(const PoolGeometry& g, std::int64_t height, std::int64_t width, Range range, const F& at) {
  for (std::int64_t unit = range.begin; unit < range.end; ++unit) {
    if (g.x_layout == Layout::nchw16c) {
      const std::int64_t n = unit / (g.c / 16), first = unit % (g.c / 16) * 16;
      for (std::int64_t h = 0; h < height; ++h)
        for (std::int64_t w = 0; w < width; ++w)
          for (std::int64_t c = first; c < first + 16; c += kLanes) at(Floats{}, n, h, w, c);
    } else {
      const std::int64_t n = unit / height, h = unit % height;
      for (std::int64_t w = 0; w < width; ++w)
        for_columns(g.c, [&](auto lanes, std::int64_t c) { at(lanes, n, h, w, c); });
    }
  }
}

template <PoolInput kInput, typename Types>
void pool_input(const PoolTask<Types>& task, Range range) {
  const PoolGeometry& g = task.geometry;
  if (task.max)
    walk_pixels(g, g.out_h, g.out_w, range,
                [&](auto lanes, auto... place) { max_pixel<decltype(lanes), kInput>(task, place...); });
  else
    walk_pixels(g, g.out_h, g.out_w, range,
                [&](auto lanes, auto... place) { average_pixel<decltype(lanes), kInput>(task, place...); });
}

template <typename Types>
void pool_forward(const PoolTask<Types>& task, Range range) {
  switch (task.input) {
    case PoolInput::direct:
      return pool_input<PoolInput::direct>(task, range);
    case PoolInput::normalized:
      return pool_input<PoolInput::normalized>(task, range);
    case PoolInput::residual_plain:
      return pool_input<PoolInput::residual_plain>(task, range);
    case PoolInput::residual_normalized:
      return pool_input<PoolInput::residual_normalized>(task, range);
  }
}

template <bool kMax, bool kAccumulate, typename Types>
void pool_gather(const PoolBackwardTask<Types>& task, Range range) {
  walk_pixels(task.geometry, task.geometry.h, task.geometry.w, range,
              [&](auto lanes, auto... place) { gather_pixel<decltype(lanes), kMax, kAccumulate>(task, place...); });
}

template <typename Types>
void pool_backward(const PoolBackwardTask<Types>& task, Range range) {
  if (task.accumulate)
    task.max ? pool_gather<true, true>(task, range) : pool_gather<false, true>(task, range);
  else
    task.max ? pool_gather<true, false>(task, range) : pool_gather<false, false>(task, range);
}

}  // namespace lockstep::cpu::LOCKSTEP_ISA

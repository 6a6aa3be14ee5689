// Kernels of conv2d_winograd.cpp for one instruction set (each_isa.h). A vector holds channels of one block of 16.

namespace lockstep::cpu::LOCKSTEP_ISA {

inline constexpr int kVectors = 16 / kLanes;  // of a block
// Rows of the products whose sums are in registers together, with two blocks of columns.
#if LOCKSTEP_LANES == 16
inline constexpr int kTileRows = 12, kChannelRows = 8;
#elif defined(__aarch64__)
inline constexpr int kTileRows = 3, kChannelRows = 2;
#elif LOCKSTEP_LANES == 8
inline constexpr int kTileRows = 3, kChannelRows = 2;
#else
inline constexpr int kTileRows = 1, kChannelRows = 1;
#endif

// The transforms of one row or column: y = M x for one of the constant matrices. They evaluate polynomials at 0, a, -a,
// b, -b and infinity. With a = 5/8 and b = 3/2, rounding errors are less than half of those with the usual 1 and 2.
inline constexpr float kA = 0.625f, kB = 1.5f, kA2 = kA * kA, kB2 = kB * kB;
inline constexpr float kNear = 1 / (2 * kA2 * (kA2 - kB2)), kFar = 1 / (2 * kB2 * (kB2 - kA2));

struct InputTransform {  // B^T
  static constexpr int kIn = 6, kOut = 6;
  static inline void apply(const Floats* x, Floats* y) {
    const Floats even = x[4] - kB2 * x[2], odd = kA * (x[3] - kB2 * x[1]);
    const Floats far_even = x[4] - kA2 * x[2], far_odd = kB * (x[3] - kA2 * x[1]);
    y[0] = kA2 * kB2 * x[0] - (kA2 + kB2) * x[2] + x[4];
    y[1] = even + odd;
    y[2] = even - odd;
    y[3] = far_even + far_odd;
    y[4] = far_even - far_odd;
    y[5] = kA2 * kB2 * x[1] - (kA2 + kB2) * x[3] + x[5];
  }
};

struct OutputTransform {  // A^T
  static constexpr int kIn = 6, kOut = 4;
  static inline void apply(const Floats* x, Floats* y) {
    const Floats sum = x[1] + x[2], difference = x[1] - x[2], far_sum = x[3] + x[4], far_difference = x[3] - x[4];
    y[0] = x[0] + sum + far_sum;
    y[1] = kA * difference + kB * far_difference;
    y[2] = kA2 * sum + kB2 * far_sum;
    y[3] = kA * kA2 * difference + kB * kB2 * far_difference + x[5];
  }
};

struct GradientTransform {  // A
  static constexpr int kIn = 4, kOut = 6;
  static inline void apply(const Floats* x, Floats* y) {
    const Floats even = x[0] + kA2 * x[2], odd = kA * (x[1] + kA2 * x[3]);
    const Floats far_even = x[0] + kB2 * x[2], far_odd = kB * (x[1] + kB2 * x[3]);
    y[0] = x[0];
    y[1] = even + odd;
    y[2] = even - odd;
    y[3] = far_even + far_odd;
    y[4] = far_even - far_odd;
    y[5] = x[3];
  }
};

struct WeightTransform {  // G
  static constexpr int kIn = 3, kOut = 6;
  static inline void apply(const Floats* x, Floats* y) {
    const Floats even = kNear * (x[0] + kA2 * x[2]), odd = kNear * kA * x[1];
    const Floats far_even = kFar * (x[0] + kB2 * x[2]), far_odd = kFar * kB * x[1];
    y[0] = (1 / (kA2 * kB2)) * x[0];
    y[1] = even + odd;
    y[2] = even - odd;
    y[3] = far_even + far_odd;
    y[4] = far_even - far_odd;
    y[5] = x[2];
  }
};

struct WeightGradientTransform {  // G^T
  static constexpr int kIn = 6, kOut = 3;
  static inline void apply(const Floats* x, Floats* y) {
    const Floats sum = kNear * (x[1] + x[2]), far_sum = kFar * (x[3] + x[4]);
    y[0] = (1 / (kA2 * kB2)) * x[0] + sum + far_sum;
    y[1] = kNear * kA * (x[1] - x[2]) + kFar * kB * (x[3] - x[4]);
    y[2] = kA2 * sum + kB2 * far_sum + x[5];
  }
};

/// T x T^T: load(i, j) of the input, store(i, j, value) of the result.
template <typename T, typename Load, typename Store>
inline void transform(const Load& load, const Store& store) {
  Floats half[T::kOut][T::kIn];
#pragma GCC unroll 6
  for (int j = 0; j < T::kIn; ++j) {
    Floats column[T::kIn], result[T::kOut];
#pragma GCC unroll 6
    for (int i = 0; i < T::kIn; ++i) column[i] = load(i, j);
    T::apply(column, result);
#pragma GCC unroll 6
    for (int i = 0; i < T::kOut; ++i) half[i][j] = result[i];
  }
#pragma GCC unroll 6
  for (int i = 0; i < T::kOut; ++i) {
    Floats result[T::kOut];
    T::apply(half[i], result);
#pragma GCC unroll 6
    for (int j = 0; j < T::kOut; ++j) store(i, j, result[j]);
  }
}

/// Tiles [first, first + n) of all blocks of channels, transformed: `to` (points, blocks, tiles at once, 16). The first
/// row and column of a tile's pixels are `border` before its first output. Pixels outside of the image are zeros.
template <typename T, typename E>
inline void transform_pixels(const WinogradImages& from, const WinogradTiles& tiles, std::int64_t first, std::int64_t n,
                             std::int64_t border, float* to) {
  const std::int64_t point = winograd_point_stride(from.n_blocks, tiles.at_once);
  for (std::int64_t k = 0; k < n; ++k) {
    const WinogradTile tile = tile_at(tiles, first + k);
    const std::int64_t row = tile.row - border, column = tile.column - border;
    const bool is_inside = row >= 0 && column >= 0 && row + T::kIn <= tiles.height && column + T::kIn <= tiles.width;
    const E* const corner = from.data<E>() + tile.image * from.image + row * from.row + column * from.pixel;
    for (std::int64_t block = 0; block < from.n_blocks; ++block)
      for (int v = 0; v < kVectors; ++v) {
        const E* const pixels = corner + block * from.block + v * kLanes;
        float* const target = to + (block * tiles.at_once + k) * 16 + v * kLanes;
        const auto put = [&](int i, int j, Floats value) { store(target + (i * T::kOut + j) * point, value); };
        if (is_inside) {
          transform<T>([&](int i, int j) { return load<Floats>(pixels + i * from.row + j * from.pixel); }, put);
        } else {
          transform<T>(
              [&](int i, int j) {
                const bool has_pixel =
                    row + i >= 0 && row + i < tiles.height && column + j >= 0 && column + j < tiles.width;
                return has_pixel ? load<Floats>(pixels + i * from.row + j * from.pixel) : Floats{};
              },
              put);
        }
      }
  }
}

/// Two blocks of outputs of tiles [first, first + n), from their sums (points, 2, tiles at once, 16).
template <typename E>
inline void transform_outputs(const float* from, const WinogradTiles& tiles, std::int64_t first, std::int64_t n,
                              const WinogradImages& to, std::int64_t first_block) {
  using T = OutputTransform;
  const std::int64_t point = winograd_point_stride(2, tiles.at_once);
  for (std::int64_t k = 0; k < n; ++k) {
    const WinogradTile tile = tile_at(tiles, first + k);
    E* const corner = to.data<E>() + tile.image * to.image + tile.row * to.row + tile.column * to.pixel;
    const std::int64_t rows = tiles.height - tile.row, columns = tiles.width - tile.column;
    for (std::int64_t block = 0; block < 2; ++block)
      for (int v = 0; v < kVectors; ++v) {
        const float* const sums = from + (block * tiles.at_once + k) * 16 + v * kLanes;
        E* const pixels = corner + (first_block + block) * to.block + v * kLanes;
        transform<T>([&](int i, int j) { return load<Floats>(sums + (i * T::kIn + j) * point); },
                     [&](int i, int j, Floats value) {
                       if (i < rows && j < columns) store(pixels + i * to.row + j * to.pixel, value);
                     });
      }
  }
}

/// The weights of two blocks of outputs, transformed: `to` (points, 2, inputs, 16 outputs).
inline void transform_weights(const WinogradProduct& p, std::int64_t first_block, float* to) {
  using T = WeightTransform;
  const std::int64_t n_in = p.from.n_blocks * 16, point = winograd_point_stride(2, n_in);
  alignas(64) float turned[9][16][16];  // (taps, inputs, outputs)
  for (std::int64_t block = 0; block < 2; ++block)
    for (std::int64_t in_block = 0; in_block < p.from.n_blocks; ++in_block) {
      const std::int64_t out_block = first_block + block;
      const float* weights = p.weights + (out_block * p.from.n_blocks + in_block) * 9 * 256;
      if (p.is_turned) {
        weights = p.weights + (in_block * p.to.n_blocks + out_block) * 9 * 256;
        for (int tap = 0; tap < 9; ++tap)
          for (int out = 0; out < 16; ++out)
            for (int in = 0; in < 16; ++in) turned[tap][in][out] = weights[(8 - tap) * 256 + out * 16 + in];
        weights = &turned[0][0][0];
      }
      for (int in = 0; in < 16; ++in)
        for (int v = 0; v < kVectors; ++v) {
          const float* const source = weights + in * 16 + v * kLanes;
          float* const target = to + (block * n_in + in_block * 16 + in) * 16 + v * kLanes;
          transform<T>([&](int i, int j) { return load<Floats>(source + (i * 3 + j) * 256); },
                       [&](int i, int j, Floats value) { store(target + (i * T::kOut + j) * point, value); });
        }
    }
}

/// sums (2, tiles at once, 16) = pixels (blocks, tiles at once, 16) * weights (2, inputs, 16), for kTileRows tiles.
inline void multiply_tiles(const float* pixels, std::int64_t pixel_block, const float* weights, std::int64_t n_blocks,
                           float* sums) {
  const std::int64_t weight_block = n_blocks * 256;
  Floats sum[kTileRows][2][kVectors] = {};
  for (std::int64_t block = 0; block < n_blocks; ++block, pixels += pixel_block)
    for (int i = 0; i < 16; ++i, weights += 16) {
      Floats right[2][kVectors];
#pragma GCC unroll 2
      for (int b = 0; b < 2; ++b)
#pragma GCC unroll 4
        for (int v = 0; v < kVectors; ++v) right[b][v] = load<Floats>(weights + b * weight_block + v * kLanes);
#pragma GCC unroll 12
      for (int r = 0; r < kTileRows; ++r)
#pragma GCC unroll 2
        for (int b = 0; b < 2; ++b)
#pragma GCC unroll 4
          for (int v = 0; v < kVectors; ++v) sum[r][b][v] += pixels[r * 16 + i] * right[b][v];
    }
#pragma GCC unroll 12
  for (int r = 0; r < kTileRows; ++r)
#pragma GCC unroll 2
    for (int b = 0; b < 2; ++b)
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) store(sums + b * pixel_block + r * 16 + v * kLanes, sum[r][b][v]);
}

/// Tiles [range) of a forward pass or a data gradient.
template <typename E>
void winograd_product(const WinogradProduct& p, const WinogradTiles& tiles, Range range, float* workspace) {
  const std::int64_t n_in = p.from.n_blocks * 16, at_once = tiles.at_once;
  const std::int64_t pixel_point = winograd_point_stride(p.from.n_blocks, at_once),
                     weight_point = winograd_point_stride(2, n_in), sum_point = winograd_point_stride(2, at_once);
  float *const pixels = workspace, *const weights = pixels + kPoints * pixel_point,
               *const sums = weights + kPoints * weight_point;
  for (std::int64_t first = range.begin; first < range.end; first += at_once) {
    const std::int64_t n = range.end - first < at_once ? range.end - first : at_once;
    transform_pixels<InputTransform, E>(p.from, tiles, first, n, 1, pixels);
    for (std::int64_t block = 0; block < p.to.n_blocks; block += 2) {
      transform_weights(p, block, weights);
      for (int point = 0; point < kPoints; ++point)
        for (std::int64_t k = 0; k < n; k += kTileRows)  // the last rows may be of no tile
          multiply_tiles(pixels + point * pixel_point + k * 16, at_once * 16, weights + point * weight_point,
                         p.from.n_blocks, sums + point * sum_point + k * 16);
      transform_outputs<E>(sums, tiles, first, n, p.to, block);
    }
  }
}

/// The operands of a weight gradient's sums over tiles [first, first + n); tiles [range) of them.
template <typename E>
void winograd_operands(const WinogradWeightGradient& g, const WinogradTiles& tiles, std::int64_t first, Range range) {
  const std::int64_t n = range.end - range.begin, offset = range.begin * 16;
  transform_pixels<InputTransform, E>(g.x, tiles, first + range.begin, n, 1, g.pixels + offset);
  transform_pixels<GradientTransform, E>(g.dy, tiles, first + range.begin, n, 0, g.gradients + offset);
}

/// sums (2, inputs, 16) += pixels (tiles, 16)^T * gradients (2, tiles at once, 16), for kChannelRows inputs.
inline void multiply_channels(const float* pixels, const float* gradients, std::int64_t gradient_block, std::int64_t n,
                              bool begins, float* sums, std::int64_t sum_block) {
  Floats sum[kChannelRows][2][kVectors];
#pragma GCC unroll 8
  for (int r = 0; r < kChannelRows; ++r)
#pragma GCC unroll 2
    for (int b = 0; b < 2; ++b)
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v)
        sum[r][b][v] = begins ? Floats{} : load<Floats>(sums + b * sum_block + r * 16 + v * kLanes);
  for (std::int64_t k = 0; k < n; ++k, pixels += 16, gradients += 16) {
    Floats right[2][kVectors];
#pragma GCC unroll 2
    for (int b = 0; b < 2; ++b)
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) right[b][v] = load<Floats>(gradients + b * gradient_block + v * kLanes);
#pragma GCC unroll 8
    for (int r = 0; r < kChannelRows; ++r)
#pragma GCC unroll 2
      for (int b = 0; b < 2; ++b)
#pragma GCC unroll 4
        for (int v = 0; v < kVectors; ++v) sum[r][b][v] += pixels[r] * right[b][v];
  }
#pragma GCC unroll 8
  for (int r = 0; r < kChannelRows; ++r)
#pragma GCC unroll 2
    for (int b = 0; b < 2; ++b)
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) store(sums + b * sum_block + r * 16 + v * kLanes, sum[r][b][v]);
}

/// Adds n tiles to the sums, for pairs of output blocks [range). With `begins`, the sums are overwritten.
inline void winograd_sums(const WinogradWeightGradient& g, const WinogradTiles& tiles, std::int64_t n, bool begins,
                          Range range) {
  const std::int64_t at_once = tiles.at_once, n_in = g.x.n_blocks * 16;
  const std::int64_t pixel_point = winograd_point_stride(g.x.n_blocks, at_once),
                     gradient_point = winograd_point_stride(g.dy.n_blocks, at_once),
                     sum_point = winograd_point_stride(g.dy.n_blocks, n_in);
  for (int point = 0; point < kPoints; ++point)
    for (std::int64_t pair = range.begin; pair < range.end; ++pair)
      for (std::int64_t in = 0; in < n_in; in += kChannelRows)
        multiply_channels(g.pixels + point * pixel_point + in / 16 * at_once * 16 + in % 16,
                          g.gradients + point * gradient_point + 2 * pair * at_once * 16, at_once * 16, n, begins,
                          g.sums + point * sum_point + (2 * pair * n_in + in) * 16, n_in * 16);
}

/// The gradients of pairs of output blocks [range), from their sums.
inline void winograd_gradients(const WinogradWeightGradient& g, bool accumulate, Range range) {
  using T = WeightGradientTransform;
  const std::int64_t n_in = g.x.n_blocks * 16, sum_point = winograd_point_stride(g.dy.n_blocks, n_in);
  for (std::int64_t block = 2 * range.begin; block < 2 * range.end; ++block)
    for (std::int64_t in = 0; in < n_in; ++in)
      for (int v = 0; v < kVectors; ++v) {
        const float* const sums = g.sums + (block * n_in + in) * 16 + v * kLanes;
        float* const target = g.dweight + (block * g.x.n_blocks + in / 16) * 9 * 256 + in % 16 * 16 + v * kLanes;
        transform<T>([&](int i, int j) { return load<Floats>(sums + (i * T::kIn + j) * sum_point); },
                     [&](int i, int j, Floats value) {
                       float* const to = target + (i * 3 + j) * 256;
                       store(to, accumulate ? load<Floats>(to) + value : value);
                     });
      }
}

}  // namespace lockstep::cpu::LOCKSTEP_ISA

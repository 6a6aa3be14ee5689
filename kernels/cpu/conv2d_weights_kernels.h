// Kernels of conv2d_weights.cpp for one instruction set (each_isa.h).

namespace lockstep::cpu::LOCKSTEP_ISA {

/// Sums of one tap, 8 input channels by kBlocks * 16 output channels, over the pixels of some images where the tap
/// falls on the image. In registers: 16 vectors of 16 lanes for two blocks; a pixel costs 8 broadcasts and 2 loads for
/// 16 multiplications and additions.
/// kWidth: pixels of a row, a constant for the widths of small images (rows this short are loops that processors
/// predict badly), else 0.
template <int kBlocks, int kWidth>
inline void tap_sums(const WeightGradientTask& t, const WeightGradientTask::Tap& tap, const float* x, const float* dy,
                     float* dweight, std::int64_t images, bool begin) {
  constexpr int kRows = WeightGradientTask::kRows, kVectors = 16 / kLanes;
  Floats sum[kRows][kBlocks][kVectors];
  for (int i = 0; i < kRows; ++i)
    for (int b = 0; b < kBlocks; ++b)
      for (int v = 0; v < kVectors; ++v)
        sum[i][b][v] = begin ? Floats{} : load<Floats>(dweight + b * t.dweight_block + i * 16 + v * kLanes);
  [[maybe_unused]] const std::int64_t width = tap.w.end - tap.w.begin;
  for (std::int64_t n = 0; n < images; ++n)
    for (std::int64_t h = tap.h.begin; h < tap.h.end; ++h) {
      const float* x_row = x + n * t.x_image + tap.x_offset + h * t.x_row + tap.w.begin * t.x_pixel;
      const float* dy_row = dy + n * t.dy_image + h * t.dy_row + tap.w.begin * 16;
      const auto pixel = [&](std::int64_t w) {
        const float* x_pixel = x_row + w * t.x_pixel;
        const float* dy_pixel = dy_row + w * 16;
        Floats gradient[kBlocks][kVectors];
        for (int b = 0; b < kBlocks; ++b)
          for (int v = 0; v < kVectors; ++v) gradient[b][v] = load<Floats>(dy_pixel + b * t.dy_block + v * kLanes);
        for (int i = 0; i < kRows; ++i)
          for (int b = 0; b < kBlocks; ++b)
            for (int v = 0; v < kVectors; ++v) sum[i][b][v] += x_pixel[i] * gradient[b][v];
      };
      if constexpr (kWidth > 0) {
#pragma GCC unroll 8
        for (int w = 0; w < kWidth; ++w) pixel(w);
      } else {
        for (std::int64_t w = 0; w < width; ++w) pixel(w);
      }
    }
  for (int i = 0; i < kRows; ++i)
    for (int b = 0; b < kBlocks; ++b)
      for (int v = 0; v < kVectors; ++v) store(dweight + b * t.dweight_block + i * 16 + v * kLanes, sum[i][b][v]);
}

template <int kBlocks>
inline void tap_sums_of_width(const WeightGradientTask& t, const WeightGradientTask::Tap& tap, const float* x,
                              const float* dy, float* dweight, std::int64_t images, bool begin) {
  switch (tap.w.end - tap.w.begin) {
    case 3:
      return tap_sums<kBlocks, 3>(t, tap, x, dy, dweight, images, begin);
    case 4:
      return tap_sums<kBlocks, 4>(t, tap, x, dy, dweight, images, begin);
    case 7:
      return tap_sums<kBlocks, 7>(t, tap, x, dy, dweight, images, begin);
    case 8:
      return tap_sums<kBlocks, 8>(t, tap, x, dy, dweight, images, begin);
    default:
      return tap_sums<kBlocks, 0>(t, tap, x, dy, dweight, images, begin);
  }
}

/// All taps of one block of input channels and kBlocks of output channels.
template <int kBlocks>
inline void weight_gradient_blocks(const WeightGradientTask& t, std::int64_t c_block, std::int64_t k_block) {
  const float* x = t.x + c_block * t.x_block;
  const float* dy = t.dy + k_block * t.dy_block;
  float* dweight = t.dweight + k_block * t.dweight_block + c_block * t.n_taps * 256;
  for (std::int64_t n = 0; n < t.images; n += t.images_at_once) {
    const std::int64_t images = t.images - n < t.images_at_once ? t.images - n : t.images_at_once;
    for (int tap = 0; tap < t.n_taps; ++tap)
      for (int i = 0; i < 16; i += WeightGradientTask::kRows)
        tap_sums_of_width<kBlocks>(t, t.taps[tap], x + n * t.x_image + i, dy + n * t.dy_image,
                                   dweight + tap * 256 + i * 16, images, n == 0 && !t.accumulate);
  }
}

/// Units of the task: pairs of output blocks (the last may be single), for each all input blocks.
inline void weight_gradient(const WeightGradientTask& t, Range units) {
  for (std::int64_t unit = units.begin; unit < units.end; ++unit) {
    const std::int64_t c_block = unit % t.c_blocks, k_block = unit / t.c_blocks * 2;
    if (k_block + 1 < t.k_blocks)
      weight_gradient_blocks<2>(t, c_block, k_block);
    else
      weight_gradient_blocks<1>(t, c_block, k_block);
  }
}

}  // namespace lockstep::cpu::LOCKSTEP_ISA

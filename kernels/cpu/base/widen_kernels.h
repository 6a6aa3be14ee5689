// Kernels of widen.cpp for one instruction set (each_isa.h).

namespace lockstep::cpu::LOCKSTEP_ISA {

template <typename From, typename To>
void convert_elements(const From* from, To* to, Range range) {
  std::int64_t i = range.begin;
  for (; i + kLanes <= range.end; i += kLanes) store(to + i, load<Floats>(from + i));
  for (; i < range.end; ++i) store(to + i, load<float>(from + i));
}

template <typename A, typename E>
void add_elements(const A* a, const E* b, E* sum, Range range) {
  std::int64_t i = range.begin;
  for (; i + kLanes <= range.end; i += kLanes) store(sum + i, load<Floats>(a + i) + load<Floats>(b + i));
  for (; i < range.end; ++i) store(sum + i, load<float>(a + i) + load<float>(b + i));
}

/// A range of the pixels of all images.
template <typename From, typename To, bool kToBlocks>
void convert_blocks(const ImageRows& shape, const From* from, To* to, Range range) {
  const std::int64_t n_blocks = shape.channels / kChannelBlock;
  std::int64_t image = range.begin / shape.pixels, pixel = range.begin % shape.pixels;
  for (std::int64_t i = range.begin; i < range.end; ++i) {
    for (std::int64_t block = 0; block < n_blocks; ++block) {
      const std::int64_t in_rows = i * shape.channels + block * kChannelBlock;
      const std::int64_t in_blocks = ((image * n_blocks + block) * shape.pixels + pixel) * kChannelBlock;
      const From* const source = from + (kToBlocks ? in_rows : in_blocks);
      To* const target = to + (kToBlocks ? in_blocks : in_rows);
      for (int lane = 0; lane < kChannelBlock; lane += kLanes) store(target + lane, load<Floats>(source + lane));
    }
    if (++pixel < shape.pixels) continue;
    pixel = 0;
    ++image;
  }
}

inline void widen_elements(const Bf16* from, float* to, Range range) { convert_elements(from, to, range); }
inline void narrow_elements(const float* from, Bf16* to, Range range) { convert_elements(from, to, range); }
inline void accumulate_elements(const float* from, Bf16* to, Range range) { add_elements(from, to, to, range); }
inline void widen_to_blocks(const ImageRows& shape, const Bf16* from, float* to, Range range) {
  convert_blocks<Bf16, float, true>(shape, from, to, range);
}
inline void narrow_from_blocks(const ImageRows& shape, const float* from, Bf16* to, Range range) {
  convert_blocks<float, Bf16, false>(shape, from, to, range);
}

}  // namespace lockstep::cpu::LOCKSTEP_ISA

// Kernels of lora.cpp for one instruction set (each_isa.h).

namespace lockstep::cpu::LOCKSTEP_ISA {

/// LoraDropout::kept() of `n` blocks of a row from `first` on: Philox4x32-10 with the counters of several blocks
/// beside each other, so that vector instructions multiply them.
inline void draw_masks(const LoraDropout& dropout, std::int64_t row, std::int64_t first, std::int64_t n,
                       std::uint32_t sample, std::uint32_t stream, std::uint32_t epoch, std::uint8_t* masks) {
  constexpr int kLanesOfPhilox = 16;
  std::uint32_t c0[kLanesOfPhilox], c1[kLanesOfPhilox], c2[kLanesOfPhilox], c3[kLanesOfPhilox];
  const auto index = static_cast<std::uint32_t>(row % dropout.tokens * dropout.blocks + first);
  for (std::uint32_t i = 0; i < kLanesOfPhilox; ++i) {
    c0[i] = index + i;
    c1[i] = stream;
    c2[i] = sample;
    c3[i] = epoch;
  }
  std::uint32_t k0 = dropout.seed, k1 = static_cast<std::uint32_t>(RandomPurpose::dropout);
  for (int round = 0; round < 10; ++round) {
    for (int i = 0; i < kLanesOfPhilox; ++i) {
      const std::uint64_t p0 = std::uint64_t{0xD2511F53u} * c0[i], p1 = std::uint64_t{0xCD9E8D57u} * c2[i];
      c0[i] = static_cast<std::uint32_t>(p1 >> 32) ^ c1[i] ^ k0;
      c1[i] = static_cast<std::uint32_t>(p1);
      c2[i] = static_cast<std::uint32_t>(p0 >> 32) ^ c3[i] ^ k1;
      c3[i] = static_cast<std::uint32_t>(p0);
    }
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  std::uint8_t drawn[kLanesOfPhilox];
  const std::uint32_t threshold = dropout.threshold;
  for (int i = 0; i < kLanesOfPhilox; ++i) {
    const auto pair = [threshold](std::uint32_t word) {
      return ((word & 0xffffu) >= threshold ? 1u : 0u) | ((word >> 16) >= threshold ? 2u : 0u);
    };
    drawn[i] = static_cast<std::uint8_t>(pair(c0[i]) | pair(c1[i]) << 2 | pair(c2[i]) << 4 | pair(c3[i]) << 6);
  }
  std::memcpy(masks, drawn, static_cast<std::size_t>(n < kLanesOfPhilox ? n : kLanesOfPhilox));
  if (n > kLanesOfPhilox)
    draw_masks(dropout, row, first + kLanesOfPhilox, n - kLanesOfPhilox, sample, stream, epoch, masks + kLanesOfPhilox);
}

template <typename Task>
void drop_rows(const Task& task, Range rows) {
  using From = typename Task::From;
  using To = typename Task::To;
  constexpr std::int64_t kPerBlock = LoraDropout::kPerBlock;
  const LoraDropout& dropout = task.dropout;
  const auto drop = [&](std::uint32_t kept, const From* from, To* to, std::int64_t n) {
    for (std::int64_t i = 0; i < n; ++i) {
      const float value = (kept >> i & 1u) != 0 ? dropout.keep_scale * to_float(from[i]) : 0.0f;
      to[i] = from_float<To>(task.accumulate ? to_float(to[i]) + value : value);
    }
  };
  for (std::int64_t row = rows.begin; row < rows.end; ++row) {
    const From* const from = task.source + row * task.width;
    To* const to = task.target + row * task.width;
    std::uint8_t* const masks = task.masks + row * dropout.blocks;
    if (task.draws)
      draw_masks(dropout, row, 0, dropout.blocks, task.ids[row / dropout.tokens], task.stream, task.epoch, masks);
    const std::int64_t whole = task.width / kPerBlock;
    for (std::int64_t block = 0; block < whole; ++block)
      drop(masks[block], from + block * kPerBlock, to + block * kPerBlock, kPerBlock);
    if (whole < dropout.blocks)
      drop(masks[whole], from + whole * kPerBlock, to + whole * kPerBlock, task.width - whole * kPerBlock);
  }
}

inline void add_wide(const float* added, Bf16* sum, Range range) {
  for (std::int64_t i = range.begin; i < range.end; ++i) sum[i] = from_float<Bf16>(to_float(sum[i]) + added[i]);
}

}  // namespace lockstep::cpu::LOCKSTEP_ISA

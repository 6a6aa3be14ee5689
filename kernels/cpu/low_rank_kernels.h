// Kernels of low_rank.cpp for one instruction set (each_isa.h).

namespace lockstep::cpu::LOCKSTEP_ISA {

template <typename Task>
void drop_rows(const Task& task, Range rows) {
  using From = typename Task::From;
  using To = typename Task::To;
  const LowRankDropout& dropout = task.dropout;
  for (std::int64_t row = rows.begin; row < rows.end; ++row) {
    const From* const from = task.source + row * task.width;
    To* const to = task.target + row * task.width;
    const std::uint32_t sample = task.ids[row / dropout.tokens];
    for (std::int64_t block = 0; block < dropout.blocks; ++block) {
      const std::uint32_t kept = dropout.kept(row, block, sample, task.stream, task.epoch);
      const std::int64_t first = block * LowRankDropout::kPerBlock;
      const std::int64_t n =
          task.width - first < LowRankDropout::kPerBlock ? task.width - first : LowRankDropout::kPerBlock;
      for (std::int64_t i = 0; i < n; ++i) {
        const float value = (kept >> i & 1u) != 0 ? dropout.keep_scale * to_float(from[first + i]) : 0.0f;
        to[first + i] = from_float<To>(task.accumulate ? to_float(to[first + i]) + value : value);
      }
    }
  }
}

inline void add_wide(const float* added, Bf16* sum, Range range) {
  for (std::int64_t i = range.begin; i < range.end; ++i) sum[i] = from_float<Bf16>(to_float(sum[i]) + added[i]);
}

}  // namespace lockstep::cpu::LOCKSTEP_ISA

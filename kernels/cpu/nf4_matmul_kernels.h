// Kernels of nf4_matmul.cpp for one instruction set (each_isa.h).

namespace lockstep::cpu::LOCKSTEP_ISA {

/// Expands columns [first, first + n_columns) of rows [rows.begin, rows.end) of the matrix to rows of `target`.
template <typename Task>
void expand_rows(const Task& task, Range rows) {
  using E = typename Task::Element;
  for (std::int64_t row = rows.begin; row < rows.end; ++row) {
    E* const to = task.target + (row - task.first_row) * task.n_columns - task.first_column;
    const std::int64_t begin = row * task.in_features;
    for (std::int64_t c = task.first_column; c < task.first_column + task.n_columns;) {
      const std::int64_t element = begin + c, block = element / kNf4Block;
      const std::int64_t left = (block + 1) * kNf4Block - element, of_row = task.first_column + task.n_columns - c;
      const std::int64_t end = c + (left < of_row ? left : of_row);
      // Not fused, because bitsandbytes rounds the product, too.
      const float scale = __builtin_assoc_barrier(task.scale_values[task.scale_codes[block]] *
                                                  task.scales_of_scales[block / kNf4ScaleBlock]) +
                          task.offset;
      E values[16];
      for (int i = 0; i < 16; ++i) values[i] = from_float<E>(kNf4Values[i] * scale);
      if (element % 2 != 0) to[c++] = values[task.codes[element / 2] & 15];
      const std::uint8_t* codes = task.codes + (begin + c) / 2;
      for (; c + 2 <= end; c += 2, ++codes) {
        to[c] = values[*codes >> 4];
        to[c + 1] = values[*codes & 15];
      }
      if (c < end) to[c++] = values[*codes >> 4];
    }
  }
}

}  // namespace lockstep::cpu::LOCKSTEP_ISA

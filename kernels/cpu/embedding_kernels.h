// Kernels of embedding.cpp for one instruction set (each_isa.h).

namespace lockstep::cpu::LOCKSTEP_ISA {

/// The runs of one id that begin in this part of the sorted list, to their ends.
template <typename E>
void embedding_gradient(const EmbeddingGradientTask<E>& task, Range entries) {
  for (std::int64_t begin = entries.begin; begin < entries.end; ++begin) {
    const std::int64_t id = id_of(task.sorted[begin]);
    if (id >= task.vocabulary) return;
    if (begin > 0 && id_of(task.sorted[begin - 1]) == id) continue;
    std::int64_t end = begin + 1;
    while (end < task.n && id_of(task.sorted[end]) == id) ++end;
    float* const dweight = task.dweight + id * task.width;
    for_columns(task.width, [&](auto lanes, std::int64_t c) {
      using T = decltype(lanes);
      T sum = load<T>(task.dy + position_of(task.sorted[begin]) * task.width + c);
      for (std::int64_t i = begin + 1; i < end; ++i)
        sum = sum + load<T>(task.dy + position_of(task.sorted[i]) * task.width + c);
      store(dweight + c, task.accumulate ? load<T>(dweight + c) + sum : sum);
    });
  }
}

}  // namespace lockstep::cpu::LOCKSTEP_ISA

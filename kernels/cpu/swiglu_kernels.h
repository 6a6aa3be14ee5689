// Kernels of swiglu.cpp for one instruction set (each_isa.h).

namespace lockstep::cpu::LOCKSTEP_ISA {

template <typename E>
void swiglu_pass(const SwiGluTask<E>& task, Range rows) {
  for (std::int64_t row = rows.begin; row < rows.end; ++row) {
    const E* const gates = task.x + 2 * row * task.width;
    const E* const ups = gates + task.width;
    for_columns(task.width, [&](auto lanes, std::int64_t c) {
      using T = decltype(lanes);
      const T gate = load<T>(gates + c), up = load<T>(ups + c), s = sigmoid(gate);
      if (task.dy == nullptr) return store(task.out + row * task.width + c, gate * s * up);
      const T dy = load<T>(task.dy + row * task.width + c);
      E* const dgates = task.out + 2 * row * task.width;
      E* const dups = dgates + task.width;
      const T dgate = dy * up * (s + gate * s * (1.0f - s)), dup = dy * (gate * s);
      store(dgates + c, task.accumulate ? load<T>(dgates + c) + dgate : dgate);
      store(dups + c, task.accumulate ? load<T>(dups + c) + dup : dup);
    });
  }
}

}  // namespace lockstep::cpu::LOCKSTEP_ISA

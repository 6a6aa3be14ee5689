// Kernel of add.cpp for one instruction set (each_isa.h).

namespace lockstep::cpu::LOCKSTEP_ISA {

template <typename E>
void add_elements(const E* a, const E* b, E* sum, Range range) {
  std::int64_t i = range.begin;
  for (; i + kLanes <= range.end; i += kLanes) store(sum + i, load<Floats>(a + i) + load<Floats>(b + i));
  for (; i < range.end; ++i) store(sum + i, load<float>(a + i) + load<float>(b + i));
}

}  // namespace lockstep::cpu::LOCKSTEP_ISA

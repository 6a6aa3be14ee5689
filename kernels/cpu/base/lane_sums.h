// Sums over the lanes of vectors of one instruction set. Like vectors.h, this has no include guard: the files that
// each_isa.h compiles include it. Sums are pairwise: each lane is added to the lane half a vector further, so that all
// of these functions compute the same bits.

namespace lockstep::cpu::LOCKSTEP_ISA {

/// Where in (a, b) a lane of their sum comes from: parts of kStep lanes of a and of b take turns.
template <int kStep>
constexpr int folded_lane(int lane) {
  return lane / kStep % 2 * kLanes + lane / (2 * kStep) * 2 * kStep + lane % kStep;
}
template <int kStep, int... kLane>
inline Floats folded(Floats a, Floats b, std::integer_sequence<int, kLane...>) {
  return __builtin_shufflevector(a, b, folded_lane<kStep>(kLane)...) +
         __builtin_shufflevector(a, b, (folded_lane<kStep>(kLane) + kStep)...);
}

/// The sums of the lanes of kLanes vectors, as one vector. Overwrites v.
template <int kStep = kLanes / 2>
inline Floats lanes_totals(Floats* v) {
  // Each vector has parts of 2 * kStep lanes that belong to one sum; half as long afterwards.
  for (int i = 0; i < kStep; ++i) v[i] = folded<kStep>(v[i], v[i + kStep], std::make_integer_sequence<int, kLanes>{});
  if constexpr (kStep > 1)
    return lanes_totals<kStep / 2>(v);
  else
    return v[0];
}

template <int kStep, int... kLane>
inline Floats added_to_itself(Floats v, std::integer_sequence<int, kLane...>) {
  return v + __builtin_shufflevector(v, v, ((kLane + kStep) % kLanes)...);
}

/// The sum of the lanes of one vector.
template <int kStep = kLanes / 2>
inline float lanes_total(Floats v) {
  v = added_to_itself<kStep>(v, std::make_integer_sequence<int, kLanes>{});
  if constexpr (kStep > 1)
    return lanes_total<kStep / 2>(v);
  else
    return v[0];
}

}  // namespace lockstep::cpu::LOCKSTEP_ISA

// Kernels of embedding.cpp for one instruction set (each_isa.h).

namespace lockstep::cpu::LOCKSTEP_ISA {

template <typename E>
void take_rows(const EmbeddingDescription& d, const Embedding::Forward& args, Range rows) {
  for (std::int64_t row = rows.begin; row < rows.end; ++row) {
    const std::int64_t id = args.ids[row];
    const bool exists = id >= 0 && id < d.vocabulary;
    const E* const source = static_cast<const E*>(args.weight) + (exists ? id : 0) * d.width;
    E* const target = static_cast<E*>(args.y) + row * d.width;
    if (!exists)
      std::fill_n(target, d.width, E{});
    else if (d.scale == 1)
      std::memcpy(target, source, static_cast<std::size_t>(d.width) * sizeof(E));
    else
      for_columns(d.width,
                  [&](auto lanes, std::int64_t c) { store(target + c, load<decltype(lanes)>(source + c) * d.scale); });
  }
}

/// The runs of one id that begin in this part of the sorted list (rows), to their ends.
template <typename E, typename G>
void embedding_gradient(const EmbeddingDescription& d, const Embedding::Backward& args, const IdAndPosition* sorted,
                        Range entries) {
  const E* const dy = static_cast<const E*>(args.dy);
  const bool accumulate = args.dweight_mode == GradientMode::accumulate;
  for (std::int64_t begin = entries.begin; begin < entries.end; ++begin) {
    const std::int64_t id = id_of(sorted[begin]);
    if (id >= d.vocabulary) return;
    if (begin > 0 && id_of(sorted[begin - 1]) == id) continue;
    std::int64_t end = begin + 1;
    while (end < d.rows && id_of(sorted[end]) == id) ++end;
    G* const dweight = static_cast<G*>(args.dweight) + id * d.width;
    for_columns(d.width, [&](auto lanes, std::int64_t c) {
      using T = decltype(lanes);
      T sum = load<T>(dy + position_of(sorted[begin]) * d.width + c);
      for (std::int64_t i = begin + 1; i < end; ++i) sum = sum + load<T>(dy + position_of(sorted[i]) * d.width + c);
      sum = sum * d.scale;
      store(dweight + c, accumulate ? load<T>(dweight + c) + sum : sum);
    });
  }
}

}  // namespace lockstep::cpu::LOCKSTEP_ISA

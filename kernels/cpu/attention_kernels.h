// Kernels of attention.cpp for one instruction set (each_isa.h): forward and backward of a unit of queries, and the
// packing of a block of keys. Tiles and their memory: attention.h; products of tiles: attention_products.h.
#include "kernels/cpu/attention_products.h"

namespace lockstep::cpu::LOCKSTEP_ISA {

/// What a unit knows of its queries: rows (token, head of the group), padded with rows that see no keys.
template <typename E>
struct Queries {
  Queries(const AttentionTask<E>& task, std::int64_t pair, std::int64_t unit)
      : tiling(task.tiling),
        sample(pair / tiling.kv_heads),
        first_head(pair % tiling.kv_heads * tiling.group),
        begin(unit * tiling.tokens),
        end(begin + tiling.tokens < tiling.sequence ? begin + tiling.tokens : tiling.sequence),
        n_rows((end - begin) * tiling.group),
        starts(task.document_start == nullptr ? nullptr : task.document_start + sample * tiling.sequence),
        window(task.window) {}

  std::int64_t token(std::int64_t row) const { return begin + row / tiling.group; }
  std::int64_t head(std::int64_t row) const { return first_head + row % tiling.group; }
  /// The row's place in a (batch, sequence, heads) tensor, and in one of the rows (batch, heads, sequence).
  std::int64_t place(std::int64_t row) const {
    return (sample * tiling.sequence + token(row)) * tiling.heads + head(row);
  }
  std::int64_t statistic(std::int64_t row) const {
    return (sample * tiling.heads + head(row)) * tiling.sequence + token(row);
  }
  /// The first element of the row's query in the packed matrix.
  std::int64_t packed(std::int64_t row) const {
    return (sample * tiling.sequence + token(row)) * tiling.packed_width() + head(row) * tiling.head_dim;
  }
  /// The first token that a token may attend to. Nothing outside of the sample is ever read.
  std::int64_t start(std::int64_t of_token) const {
    const std::int64_t least = window > 0 && of_token >= window ? of_token - window + 1 : 0;
    if (starts == nullptr || starts[of_token] < least) return least;
    return starts[of_token] < of_token ? starts[of_token] : of_token;
  }
  std::int64_t first_block() const {
    std::int64_t least = begin;
    for (std::int64_t t = begin; t < end; ++t) least = start(t) < least ? start(t) : least;
    return least / AttentionTiling::kKeys;
  }
  std::int64_t last_block() const { return (end - 1) / AttentionTiling::kKeys; }
  /// Columns of the block's tiles that some row sees, padded.
  std::int64_t columns(std::int64_t block) const {
    const std::int64_t seen = round_up(end - block * AttentionTiling::kKeys, tiling.padding.columns);
    return seen < AttentionTiling::kKeys ? seen : AttentionTiling::kKeys;
  }
  /// The columns of the block's tiles that a row sees: [begin, end), which may be empty.
  struct Seen {
    std::int64_t begin = 0, end = 0;
    bool all(std::int64_t columns) const { return begin <= 0 && end >= columns; }
    bool none(std::int64_t columns) const { return end <= begin || end <= 0 || begin >= columns; }
    Ints mask(std::int64_t column) const {
      const Ints index = lane_numbers() + static_cast<std::int32_t>(column);
      return (index >= static_cast<std::int32_t>(begin)) & (index < static_cast<std::int32_t>(end));
    }
  };
  Seen seen(std::int64_t row, std::int64_t block) const {
    if (row >= n_rows) return {};
    const std::int64_t of_token = token(row), key = block * AttentionTiling::kKeys;
    return {start(of_token) - key, of_token + 1 - key};
  }

  const AttentionTiling& tiling;
  std::int64_t sample, first_head, begin, end, n_rows;
  const std::int32_t* starts;
  std::int64_t window;
};

// ---- Forward --------------------------------------------------------------------------------------------------------

/// Replaces the scores of a row by exp(score - maximum so far), and rescales the sums so far accordingly.
template <typename N>
void softmax_row(const ForwardScratch<N>& scratch, std::int64_t row, std::int64_t columns, std::int64_t width,
                 float scale, bool sees_all, const auto& seen) {
  float* const scores = scratch.scores + row * AttentionTiling::kKeys;
  constexpr std::int64_t kKeys = AttentionTiling::kKeys;
  N* const p = scratch.p + row * kKeys / kPerNumber<N>;
  Floats greatest = broadcast<Floats>(-__builtin_inff());
  if (!sees_all && seen.none(columns)) {
    for (std::int64_t c = 0; c < columns; c += kLanes) store_p(p, c, Floats{});
    return;
  }
  for (std::int64_t c = 0; c < columns; c += kLanes) {
    Floats score = load<Floats>(scores + c) * scale;
    if (!sees_all) score = seen.mask(c) ? score : broadcast<Floats>(-__builtin_inff());
    greatest = greatest > score ? greatest : score;
    store(scores + c, score);
  }
  const float before = scratch.greatest[row];
  const float now = greatest_lane(greatest);
  const float after = before > now ? before : now;
  Floats total{};
  for (std::int64_t c = 0; c < columns; c += kLanes) {
    const Floats value = exponential_to_zero(load<Floats>(scores + c) - after);
    total += value;
    store_p(p, c, value);
  }
  if (after == before) {
    scratch.total[row] += lanes_total(total);
    return;
  }
  const float factor = exponential_to_zero(broadcast<Floats>(before - after))[0];
  scratch.greatest[row] = after;
  scratch.total[row] = scratch.total[row] * factor + lanes_total(total);
  for (std::int64_t c = 0; c < width; c += kLanes)
    store(scratch.sums + row * width + c, load<Floats>(scratch.sums + row * width + c) * factor);
}

template <typename Types>
void attention_forward(const AttentionTask<typename Types::Element>& task, std::int64_t pair, std::int64_t unit,
                       const AttentionKeys<typename Types::Number>& keys, void* memory) {
  using E = typename Types::Element;
  using N = typename Types::Number;
  constexpr std::int64_t kKeys = AttentionTiling::kKeys;
  const AttentionTiling& t = task.tiling;
  const Queries<E> queries(task, pair, unit);
  Scratch from(memory);
  const ForwardScratch<N> scratch(t, from);
  [[maybe_unused]] const ProductRegisters registers;
  const std::int64_t inner = t.width / kPerNumber<N>;
  for (std::int64_t row = 0; row < t.rows; ++row) {
    load_row(row < queries.n_rows ? task.qkv + queries.packed(row) : nullptr, t, scratch.q + row * inner);
    scratch.greatest[row] = -__builtin_inff();
    scratch.total[row] = 0;
  }
  std::memset(scratch.sums, 0, static_cast<std::size_t>(t.rows * t.width) * sizeof(float));
  for (std::int64_t block = queries.first_block(); block <= queries.last_block(); ++block) {
    const std::int64_t columns = queries.columns(block);
    multiply<false, N>({.a = scratch.q,
                        .a_row = inner,
                        .b = keys.k_transposed + block * inner * kKeys,
                        .b_row = kKeys,
                        .c = scratch.scores,
                        .c_row = kKeys},
                       t.rows, columns, inner);
    for (std::int64_t row = 0; row < t.rows; ++row) {
      const auto seen = queries.seen(row, block);
      softmax_row(scratch, row, columns, t.width, t.scale, seen.all(columns), seen);
    }
    multiply<true, N>({.a = scratch.p,
                       .a_row = kKeys / kPerNumber<N>,
                       .b = keys.v_rows + block * kKeys / kPerNumber<N> * t.width,
                       .b_row = t.width,
                       .c = scratch.sums,
                       .c_row = t.width},
                      t.rows, t.width, columns / kPerNumber<N>);
  }
  for (std::int64_t row = 0; row < queries.n_rows; ++row) {
    store_row(scratch.sums + row * t.width, 1.0f / scratch.total[row], t, task.y + queries.place(row) * t.head_dim);
    if (task.log_sum_exp != nullptr)
      task.log_sum_exp[queries.statistic(row)] = scratch.greatest[row] + __builtin_logf(scratch.total[row]);
  }
}

// ---- Backward -------------------------------------------------------------------------------------------------------

/// Returns when the unit before has added to more than `blocks` blocks.
inline void wait_for(const AttentionProgress* before, std::int64_t blocks) {
  if (before == nullptr) return;
  for (int spins = 0; before->load(std::memory_order_acquire) < blocks; ++spins) {
    spin_pause();
    if (spins > 1000) std::this_thread::yield();  // it may run on the same core
  }
}

/// Computes p and the gradient of the scores, which includes the scale, from the scores and dp of two rows.
template <typename E, typename N>
void softmax_rows_backward(const Queries<E>& queries, const BackwardScratch<N>& scratch, std::int64_t row,
                           std::int64_t block, std::int64_t columns) {
  constexpr std::int64_t kKeys = AttentionTiling::kKeys;
  const float scale = queries.tiling.scale;
  const typename Queries<E>::Seen seen[2] = {queries.seen(row, block), queries.seen(row + 1, block)};
  for (std::int64_t c = 0; c < columns; c += kLanes) {
    Floats p[2], dscore[2];
#pragma GCC unroll 2
    for (int i = 0; i < 2; ++i) {
      const std::int64_t at = (row + i) * kKeys + c;
      p[i] = exponential_to_zero(load<Floats>(scratch.scores + at) * scale - scratch.log_sum_exp[row + i]);
      dscore[i] = p[i] * (load<Floats>(scratch.dp + at) - scratch.delta[row + i]) * scale;
      if (seen[i].all(columns)) continue;
      const Ints mask = seen[i].mask(c);
      p[i] = mask ? p[i] : Floats{};
      dscore[i] = mask ? dscore[i] : Floats{};
    }
    store_rows(scratch.p_of_pairs + row * kKeys / kPerNumber<N> + c, p);
    store_rows(scratch.dscore_of_pairs + row * kKeys / kPerNumber<N> + c, dscore);
    if constexpr (kPerNumber<N> == 2)
      for (int i = 0; i < 2; ++i) store_p(scratch.dscore + (row + i) * kKeys / 2, c, dscore[i]);
  }
}

template <typename E, typename N>
void load_queries(const AttentionTask<E>& task, const Queries<E>& queries, const BackwardScratch<N>& scratch) {
  const AttentionTiling& t = task.tiling;
  const std::int64_t row_numbers = t.width / kPerNumber<N>;
  for (std::int64_t row = 0; row < t.rows; ++row) {
    const bool is_padding = row >= queries.n_rows;
    const std::int64_t place = is_padding ? 0 : queries.place(row) * t.head_dim;
    const E* const q = is_padding ? nullptr : task.qkv + queries.packed(row);
    const E* const dy = is_padding ? nullptr : task.dy + place;
    load_row(q, t, scratch.q + row * row_numbers);
    load_row(dy, t, scratch.dy + row * row_numbers);
    scratch.delta[row] = is_padding ? 0 : product_of_rows(task.y_of_forward + place, dy, t.head_dim);
    scratch.log_sum_exp[row] = is_padding ? 0 : task.log_sum_exp[queries.statistic(row)];
    if constexpr (kPerNumber<N> == 2)
      if (row % 2 == 1) {
        interleave_rows(scratch.q + (row - 1) * row_numbers, t.width, scratch.q_of_pairs + row / 2 * t.width);
        interleave_rows(scratch.dy + (row - 1) * row_numbers, t.width, scratch.dy_of_pairs + row / 2 * t.width);
      }
  }
  std::memset(scratch.dq, 0, static_cast<std::size_t>(t.rows * t.width) * sizeof(float));
}

/// `before`: the progress of the unit before this one of the same pair; null: this is the first.
template <typename Types>
void attention_backward(const AttentionTask<typename Types::Element>& task, std::int64_t pair, std::int64_t unit,
                        const AttentionKeys<typename Types::Number>& keys, const AttentionProgress* before,
                        AttentionProgress& progress, void* memory) {
  using E = typename Types::Element;
  using N = typename Types::Number;
  constexpr std::int64_t kKeys = AttentionTiling::kKeys, kPack = kPerNumber<N>;
  const AttentionTiling& t = task.tiling;
  const Queries<E> queries(task, pair, unit);
  Scratch from(memory);
  const BackwardScratch<N> scratch(t, from);
  load_queries(task, queries, scratch);
  [[maybe_unused]] const ProductRegisters registers;
  const std::int64_t inner = t.width / kPack;
  const std::int64_t first = queries.first_block(), last = queries.last_block();
  wait_for(before, first);
  progress.store(first, std::memory_order_release);
  for (std::int64_t block = first; block <= last; ++block) {
    const std::int64_t columns = queries.columns(block), at = block * inner * kKeys;
    multiply<false, N>({scratch.q, inner, 1, keys.k_transposed + at, kKeys, scratch.scores, kKeys}, t.rows, columns,
                       inner);
    multiply<false, N>({scratch.dy, inner, 1, keys.v_transposed + at, kKeys, scratch.dp, kKeys}, t.rows, columns,
                       inner);
    for (std::int64_t row = 0; row < t.rows; row += 2) softmax_rows_backward(queries, scratch, row, block, columns);
    multiply<true, N>(
        {scratch.dscore, kKeys / kPack, 1, keys.k_rows + block * kKeys / kPack * t.width, t.width, scratch.dq, t.width},
        t.rows, t.width, columns / kPack);
    wait_for(before, block + 1);
    const std::int64_t sums = block * kKeys * t.width;
    multiply<true, N>(
        {scratch.p_of_pairs, 1, kKeys, scratch.dy_of_pairs, t.width, keys.dv + sums, t.width, scratch.transposed},
        columns, t.width, t.rows / kPack);
    multiply<true, N>(
        {scratch.dscore_of_pairs, 1, kKeys, scratch.q_of_pairs, t.width, keys.dk + sums, t.width, scratch.transposed},
        columns, t.width, t.rows / kPack);
    progress.store(block + 1, std::memory_order_release);
  }
  progress.store(t.n_blocks, std::memory_order_release);  // it adds to no later block, and neither do those before it
  for (std::int64_t row = 0; row < queries.n_rows; ++row)
    store_row(scratch.dq + row * t.width, 1.0f, t, task.dqkv + queries.packed(row));
}

// ---- Keys and values ------------------------------------------------------------------------------------------------

/// Packs a block of the pair's keys and values, and zeroes its sums; null pointers are left out.
template <typename Types>
void attention_pack(const AttentionTask<typename Types::Element>& task, std::int64_t pair, std::int64_t block,
                    const AttentionKeys<typename Types::Number>& keys) {
  using E = typename Types::Element;
  using N = typename Types::Number;
  constexpr std::int64_t kKeys = AttentionTiling::kKeys;
  const AttentionTiling& t = task.tiling;
  const std::int64_t inner = t.width / kPerNumber<N>, begin = block * kKeys;
  const std::int64_t count = t.sequence - begin < kKeys ? t.sequence - begin : kKeys;
  const E* const k = task.qkv + (pair / t.kv_heads * t.sequence + begin) * t.packed_width() +
                     (t.heads + pair % t.kv_heads) * t.head_dim;
  const E* const v = k + t.kv_heads * t.head_dim;
  const std::int64_t rows = block * kKeys / kPerNumber<N> * t.width;
  if (keys.k_transposed != nullptr) pack_transposed(k, count, t, keys.k_transposed + block * inner * kKeys);
  if (keys.v_transposed != nullptr) pack_transposed(v, count, t, keys.v_transposed + block * inner * kKeys);
  if (keys.k_rows != nullptr) pack_rows(k, count, t, keys.k_rows + rows);
  if (keys.v_rows != nullptr) pack_rows(v, count, t, keys.v_rows + rows);
  const auto sums_bytes = static_cast<std::size_t>(kKeys * t.width) * sizeof(float);
  if (keys.dk != nullptr) std::memset(keys.dk + begin * t.width, 0, sums_bytes);
  if (keys.dv != nullptr) std::memset(keys.dv + begin * t.width, 0, sums_bytes);
}

/// Writes the block's gradients of keys and values.
template <typename Types>
void attention_unpack(const AttentionTask<typename Types::Element>& task, std::int64_t pair, std::int64_t block,
                      const AttentionKeys<typename Types::Number>& keys) {
  using E = typename Types::Element;
  const AttentionTiling& t = task.tiling;
  const std::int64_t begin = block * AttentionTiling::kKeys, left = t.sequence - begin;
  for (std::int64_t key = begin; key < begin + (left < AttentionTiling::kKeys ? left : AttentionTiling::kKeys); ++key) {
    E* const dk = task.dqkv + (pair / t.kv_heads * t.sequence + key) * t.packed_width() +
                  (t.heads + pair % t.kv_heads) * t.head_dim;
    store_row(keys.dk + key * t.width, 1.0f, t, dk);
    store_row(keys.dv + key * t.width, 1.0f, t, dk + t.kv_heads * t.head_dim);
  }
}

}  // namespace lockstep::cpu::LOCKSTEP_ISA

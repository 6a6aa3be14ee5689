#include "comm/sum.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>

#include "lockstep/bf16.h"
#include "lockstep/error.h"

namespace lockstep::comm {

namespace {

constexpr std::size_t kBlockBytes = 4096;  // stays in the L1 cache while it is summed and written out

/// The common case of two ranks, in place. Each value is read and written once.
template <typename T>
void sum_pair(T* __restrict a, T* __restrict b, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) {
    const T total = a[i] + b[i];
    a[i] = total;
    b[i] = total;
  }
}

template <typename T>
void add(T* __restrict total, const T* __restrict other, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) total[i] = total[i] + other[i];
}

template <typename T>
void sum_blocks(std::span<const std::byte* const> sources, std::span<std::byte* const> targets, std::size_t n,
                std::span<const int> merges, const OpenSums& kept) {
  constexpr std::size_t kBlock = kBlockBytes / sizeof(T);
  alignas(64) std::array<std::array<T, kBlock>, kMaxOpenSums>
      open;  // sums of subtrees whose other half is still missing
  for (std::size_t begin = 0; begin < n; begin += kBlock) {
    const std::size_t length = std::min(kBlock, n - begin);
    const std::size_t offset_bytes = begin * sizeof(T), length_bytes = length * sizeof(T);
    std::size_t n_open = 0;
    for (; n_open < static_cast<std::size_t>(kept.n_before); ++n_open)
      std::memcpy(open[n_open].data(), kept.at(n_open) + offset_bytes, length_bytes);
    for (std::size_t s = 0; s < sources.size(); ++s) {
      const T* source = reinterpret_cast<const T*>(sources[s]) + begin;
      if (merges[s] == 0) {
        std::memcpy(open[n_open++].data(), source, length_bytes);
        continue;
      }
      add(open[n_open - 1].data(), source, length);
      for (int merge = 1; merge < merges[s]; ++merge, --n_open)
        add(open[n_open - 2].data(), open[n_open - 1].data(), length);
    }
    for (std::size_t i = 0; i < n_open && kept.first != nullptr; ++i)
      std::memcpy(kept.at(i) + offset_bytes, open[i].data(), length_bytes);
    for (std::byte* target : targets) std::memcpy(target + offset_bytes, open[0].data(), length_bytes);
  }
}

template <typename T>
void sum_typed(std::span<const std::byte* const> sources, std::span<std::byte* const> targets, std::size_t n,
               std::span<const int> merges, const OpenSums& kept) {
  if (kept.first == nullptr && sources.size() == 2 && targets.size() == 2 && sources[0] == targets[0] &&
      sources[1] == targets[1]) {
    sum_pair(reinterpret_cast<T*>(targets[0]), reinterpret_cast<T*>(targets[1]), n);
  } else {
    sum_blocks<T>(sources, targets, n, merges, kept);
  }
}

}  // namespace

void sum(std::span<const std::byte* const> sources, std::span<std::byte* const> targets, std::size_t n_elements,
         DType dtype, const SumOrder& order) {
  sum(sources, targets, n_elements, dtype, order.merges, {});
}

OpenSums open_sums(const SumRound& round, std::size_t begin, DType dtype) {
  if (!round.exists()) return {};
  return {static_cast<std::byte*>(round.open) + begin * size_bytes(dtype), round.stride * size_bytes(dtype),
          round.n_before};
}

void sum(std::span<const std::byte* const> sources, std::span<std::byte* const> targets, std::size_t n_elements,
         DType dtype, std::span<const int> merges, const OpenSums& open) {
  if (dtype == DType::fp32) {
    sum_typed<float>(sources, targets, n_elements, merges, open);
  } else if (dtype == DType::bf16) {
    sum_typed<Bf16>(sources, targets, n_elements, merges, open);
  } else {
    require(dtype == DType::fp64, ErrorCode::internal, "ranks can sum fp32, fp64 and bf16, not {}", name(dtype));
    sum_typed<double>(sources, targets, n_elements, merges, open);
  }
}

ElementRange shard_of(std::size_t n_elements, std::size_t element_bytes, int n_shards, int index) {
  const std::size_t line = 64 / element_bytes;
  const auto n = static_cast<std::size_t>(n_shards);
  const std::size_t length = ((n_elements + n - 1) / n + line - 1) / line * line;
  const std::size_t begin = std::min(n_elements, static_cast<std::size_t>(index) * length);
  return {begin, std::min(length, n_elements - begin)};
}

std::size_t incoming_shards_bytes(std::size_t chunk_bytes, int n_ranks) {
  return static_cast<std::size_t>(n_ranks) * shard_of(chunk_bytes, 1, n_ranks, 0).n_elements;
}

std::size_t exchange_buffer_bytes(std::size_t chunk_bytes, int n_ranks, DType narrowest_wire) {
  const std::size_t incoming = incoming_shards_bytes(chunk_bytes, n_ranks);
  return incoming + (narrowest_wire == DType::fp32 ? 0 : (incoming + chunk_bytes) / 2);
}

namespace {

int first_half(int n) { return n - n / 2; }

void append_tree(int n_leaves, std::vector<int>& merges) {
  if (n_leaves == 1) {
    merges.push_back(0);
    return;
  }
  append_tree(first_half(n_leaves), merges);
  append_tree(n_leaves - first_half(n_leaves), merges);
  ++merges.back();
}

}  // namespace

SumOrder tree_order(int n_leaves) {
  SumOrder order;
  if (n_leaves > 0) append_tree(n_leaves, order.merges);
  return order;
}

std::vector<int> subtree_sizes(int n_leaves, int n_subtrees) {
  require(n_subtrees >= 1 && n_subtrees <= n_leaves, ErrorCode::internal, "{} subtrees of a tree with {} leaves",
          n_subtrees, n_leaves);
  struct Subtree {
    int n_leaves, depth;
  };
  std::vector<Subtree> subtrees{{n_leaves, 0}};
  while (subtrees.size() < static_cast<std::size_t>(n_subtrees)) {
    // Subtrees are split level by level, and within a level from the last to the first, so that the first one stays the
    // largest.
    auto cut = subtrees.end();
    for (auto it = subtrees.begin(); it != subtrees.end(); ++it) {
      if (it->n_leaves > 1 && (cut == subtrees.end() || it->depth <= cut->depth)) cut = it;
    }
    const Subtree whole = *cut;
    *cut = {whole.n_leaves - first_half(whole.n_leaves), whole.depth + 1};
    subtrees.insert(cut, {first_half(whole.n_leaves), whole.depth + 1});
  }
  std::vector<int> sizes;
  for (const Subtree& subtree : subtrees) sizes.push_back(subtree.n_leaves);
  return sizes;
}

std::optional<GroupedOrder> group(const SumOrder& order, std::span<const int> sizes) {
  require(std::accumulate(sizes.begin(), sizes.end(), 0) == order.size(), ErrorCode::internal,
          "the sizes of the groups do not add up to the {} sources of the order", order.size());
  GroupedOrder grouped;
  auto source = order.merges.begin();
  for (const int size : sizes) {
    SumOrder inner;
    int open = 0;  // the number of this group's partial sums on the stack
    for (int i = 0; i < size; ++i, ++source) {
      const bool is_last = i + 1 == size;
      if (is_last ? *source < open : *source > open) return std::nullopt;
      inner.merges.push_back(is_last ? open : *source);
      open += 1 - inner.merges.back();
      if (is_last) grouped.outer.merges.push_back(*source - inner.merges.back());
    }
    grouped.inner.push_back(std::move(inner));
  }
  return grouped;
}

SumOrder sequential_order(int n_sources) {
  SumOrder order;
  order.merges.assign(static_cast<std::size_t>(n_sources), 1);
  if (n_sources > 0) order.merges[0] = 0;
  return order;
}

}  // namespace lockstep::comm

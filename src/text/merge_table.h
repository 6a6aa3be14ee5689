// The merges of byte pair encoding: a hash table from pairs of token ids to the rank of the merge and its result.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace lockstep::text {

/// The tokens `left` and `right`, which follow one another, become `result`. The lowest rank is merged first.
struct Merge {
  std::int32_t left = 0, right = 0, result = 0;
  std::uint32_t rank = 0;
};

/// Open addressing with at most half of the slots in use. If a pair has several merges, the last one counts.
class MergeTable {
 public:
  struct Found {
    std::uint32_t rank;
    std::int32_t result;
  };
  static constexpr std::uint32_t kNoMerge = 0xffffffff;  // the rank of a pair that is not merged

  explicit MergeTable(std::span<const Merge> merges)
      : shift_(64 - std::bit_width(merges.size() * 2 + 1)), slots_(std::size_t{1} << (64 - shift_)) {
    for (const Merge& merge : merges) {
      Slot& slot = slots_[index_of(key_of(merge.left, merge.right))];
      slot = {key_of(merge.left, merge.right), {merge.rank, merge.result}};
    }
  }

  Found find(std::int32_t left, std::int32_t right) const {
    const std::uint64_t key = key_of(left, right);
    const Slot& slot = slots_[index_of(key)];
    return slot.key == key ? slot.found : Found{kNoMerge, 0};
  }

 private:
  static constexpr std::uint64_t kEmpty = ~std::uint64_t{0};
  struct Slot {
    std::uint64_t key = kEmpty;
    Found found{kNoMerge, 0};
  };

  static std::uint64_t key_of(std::int32_t left, std::int32_t right) {
    return std::uint64_t{static_cast<std::uint32_t>(left)} << 32 | static_cast<std::uint32_t>(right);
  }
  /// The slot of the key, or the empty one where it belongs.
  std::size_t index_of(std::uint64_t key) const {
    std::size_t index = (key ^ key >> 32) * 0x9e3779b97f4a7c15u >> shift_;
    while (slots_[index].key != key && slots_[index].key != kEmpty) index = (index + 1) & (slots_.size() - 1);
    return index;
  }

  int shift_;
  std::vector<Slot> slots_;
};

}  // namespace lockstep::text

// The ids of words that were encoded before, for one thread. Words are short and repeat: in English text, about 95 % of
// them are found here.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

namespace lockstep::text {

/// Direct-mapped: a new word replaces the one that was in its place. An entry is one cache line.
class WordCache {
 public:
  static constexpr std::size_t kMaxBytes = 23;
  static constexpr std::size_t kMaxIds = 9;

  /// Up to kMaxBytes bytes, and their number, as three integers.
  class Key {
   public:
    explicit Key(std::string_view word) {
      std::array<char, sizeof parts_> bytes{};
      bytes[0] = static_cast<char>(word.size() + 1);  // not 0, which is an empty entry
      std::ranges::copy(word, bytes.begin() + 1);
      std::memcpy(parts_.data(), bytes.data(), sizeof parts_);
    }
    bool operator==(const Key&) const = default;
    std::size_t index() const {
      std::uint64_t hash = parts_[0] * 0x9e3779b97f4a7c15u;
      hash = (hash ^ hash >> 29 ^ parts_[1]) * 0xbf58476d1ce4e5b9u;
      hash = (hash ^ hash >> 32 ^ parts_[2]) * 0x94d049bb133111ebu;
      return hash >> (64 - kLogEntries);
    }

   private:
    friend class WordCache;
    Key() = default;
    std::array<std::uint64_t, 3> parts_{};
  };

  WordCache() : entries_(std::size_t{1} << kLogEntries) {}

  static bool accepts(std::string_view word) { return word.size() <= kMaxBytes; }

  /// The ids, which are valid until the next insert(); nothing if the word is not in the cache.
  std::optional<std::span<const std::int32_t>> find(const Key& key) const {
    const Entry& entry = entries_[key.index()];
    if (!(entry.key == key)) return std::nullopt;
    return std::span(entry.ids.data(), static_cast<std::size_t>(entry.n_ids));
  }

  void insert(const Key& key, std::span<const std::int32_t> ids) {
    if (ids.size() > kMaxIds) return;
    Entry& entry = entries_[key.index()];
    entry.key = key;
    entry.n_ids = static_cast<std::int32_t>(ids.size());
    std::copy(ids.begin(), ids.end(), entry.ids.begin());
  }

 private:
  static constexpr int kLogEntries = 15;
  struct alignas(64) Entry {
    Key key;
    std::int32_t n_ids = 0;
    std::array<std::int32_t, kMaxIds> ids{};
  };
  static_assert(sizeof(Entry) == 64);

  std::vector<Entry> entries_;
};

}  // namespace lockstep::text

// Byte pair encoding of words (Sennrich et al., "Neural machine translation of rare words with subword units", 2016).
//
// A word is first a sequence of symbols: its bytes, or its code points. Then the neighbours whose merge has the lowest
// rank become one token (the leftmost ones if ranks are equal), until no neighbours can be merged. For n symbols this
// takes O(n log n), whatever the word is.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace lockstep::text {

// ---- The table of merges --------------------------------------------------------------------------------------------

/// The tokens `left` and `right`, which follow one another, become `result`. The lowest rank is merged first.
struct Merge {
  std::int32_t left = 0, right = 0, result = 0;
  std::uint32_t rank = 0;
};

/// A hash table from pairs of token ids to the rank of the merge and its result: open addressing with at most half of
/// the slots in use. If a pair has several merges, the last one counts.
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

// ---- The cache of words ---------------------------------------------------------------------------------------------

/// The ids of words that were encoded before, for one thread. Words are short and repeat: in English text, about 95 %
/// of them are found here. Direct-mapped: a new word replaces the one that was in its place. An entry is one cache
/// line.
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

// ---- The encoder ----------------------------------------------------------------------------------------------------

struct StringHash {
  using is_transparent = void;
  std::size_t operator()(std::string_view text) const { return std::hash<std::string_view>{}(text); }
};
using IdsByText = std::unordered_map<std::string, std::int32_t, StringHash, std::equal_to<>>;

/// What the symbols of a word are before anything is merged.
enum class SymbolKind : std::uint8_t {
  bytes,        // GPT-2: every byte
  code_points,  // SentencePiece: every code point
};

struct BytePairModel {
  SymbolKind symbols = SymbolKind::bytes;
  /// The ids of the tokens, by the bytes of the text that they stand for.
  IdsByText ids;
  std::vector<Merge> merges;
  /// The token of a symbol that is not in the vocabulary. Without one, such symbols are left out.
  std::optional<std::int32_t> unknown;
  bool fuse_unknown = false;  // one token for several unknown symbols in a row
  /// code_points only: the ids of the bytes of a symbol that is not in the vocabulary. -1: there is no such token.
  std::optional<std::array<std::int32_t, 256>> byte_fallback;
  bool whole_words_first = false;  // a word that is a token is not built from merges (`ignore_merges`)
};

/// What one thread needs while it encodes.
struct MergeMemory {
  struct Symbol {
    std::int32_t id;
    std::uint32_t begin;  // its first byte in the word
  };
  struct Link {
    std::int32_t id, previous, next;
    MergeTable::Found merge;  // with the next one
  };
  std::vector<Symbol> symbols;
  std::vector<Link> links;
  std::vector<std::uint64_t> queue;
  WordCache cache;
};

class BytePairEncoding {
 public:
  explicit BytePairEncoding(BytePairModel model);

  /// Appends the ids of a word of valid UTF-8 of less than 2^31 bytes. Thread-safe: each thread has its own memory.
  void encode(std::string_view word, std::vector<std::int32_t>& ids, MergeMemory& memory) const;

 private:
  using Symbols = std::span<const MergeMemory::Symbol>;

  std::int32_t id_of_symbol(std::string_view symbol) const;
  void find_joints();
  void encode_code_points(std::string_view word, std::vector<std::int32_t>& ids, MergeMemory& memory) const;
  void encode_cached(std::string_view part, Symbols symbols, std::vector<std::int32_t>& ids, MergeMemory& memory) const;
  void make_symbols(std::string_view word, std::vector<MergeMemory::Symbol>& symbols) const;
  void merge(Symbols symbols, std::vector<std::int32_t>& ids, MergeMemory& memory) const;
  void merge_short(Symbols symbols, std::vector<std::int32_t>& ids) const;
  void merge_long(Symbols symbols, std::vector<std::int32_t>& ids, MergeMemory& memory) const;

  BytePairModel model_;
  MergeTable merges_;
  /// bytes: of each byte; code_points: of each ASCII character. -1: not in the vocabulary.
  std::array<std::int32_t, 256> symbol_ids_;
  /// code_points: the pairs of symbols between which a merge can join two tokens. A word can be cut everywhere else,
  /// and its parts repeat more often than the whole. Not used if a merge has an input that is also a token of the byte
  /// fallback.
  std::optional<MergeTable> joints_;
};

}  // namespace lockstep::text

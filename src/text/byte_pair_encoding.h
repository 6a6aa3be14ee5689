// Byte pair encoding of words (Sennrich et al., "Neural machine translation of rare words with subword units", 2016).
//
// A word is first a sequence of symbols: its bytes, or its code points. Then the neighbours whose merge has the lowest
// rank become one token (the leftmost ones if ranks are equal), until no neighbours can be merged. For n symbols this
// takes O(n log n), whatever the word is.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "text/merge_table.h"
#include "text/word_cache.h"

namespace lockstep::text {

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

#include "text/byte_pair_encoding.h"

#include <functional>
#include <limits>
#include <unordered_set>
#include <utility>

#include "base/signals.h"
#include "base/utf8.h"
#include "lockstep/error.h"

namespace lockstep::text {
namespace {

/// Up to this number of symbols, searching all pairs for the next merge is faster than a queue.
constexpr std::size_t kMaxShort = 32;
constexpr std::size_t kMaxWordBytes = std::numeric_limits<std::int32_t>::max();

}  // namespace

BytePairEncoding::BytePairEncoding(BytePairModel model) : model_(std::move(model)), merges_(model_.merges) {
  for (unsigned c = 0; c < symbol_ids_.size(); ++c) {
    const auto found = model_.ids.find(std::string_view(std::string(1, static_cast<char>(c))));
    symbol_ids_[c] = found == model_.ids.end() ? -1 : found->second;
  }
  if (model_.symbols == SymbolKind::code_points) find_joints();
  model_.merges = {};
}

std::int32_t BytePairEncoding::id_of_symbol(std::string_view symbol) const {
  if (symbol.size() == 1) return symbol_ids_[static_cast<unsigned char>(symbol[0])];
  const auto found = model_.ids.find(symbol);
  return found == model_.ids.end() ? -1 : found->second;
}

void BytePairEncoding::find_joints() {
  std::unordered_set<std::int32_t> not_cut;
  if (model_.unknown) not_cut.insert(*model_.unknown);
  if (model_.byte_fallback) not_cut.insert(model_.byte_fallback->begin(), model_.byte_fallback->end());
  std::unordered_map<std::int32_t, std::string_view> texts;
  for (const auto& [text, id] : model_.ids) texts.emplace(id, text);

  std::vector<Merge> joints;
  for (const Merge& merge : model_.merges) {
    if (not_cut.contains(merge.left) || not_cut.contains(merge.right) || not_cut.contains(merge.result)) return;
    const std::string_view left = texts[merge.left], right = texts[merge.right];
    if (left.empty() || right.empty()) continue;
    const std::int32_t a = id_of_symbol(left.substr(begin_of_last(left, left.size())));
    const std::int32_t b = id_of_symbol(right.substr(0, n_bytes_of(right[0])));
    if (a >= 0 && b >= 0) joints.push_back({a, b, 0, 0});
  }
  joints_.emplace(joints);
}

void BytePairEncoding::encode(std::string_view word, std::vector<std::int32_t>& ids, MergeMemory& memory) const {
  require(word.size() < kMaxWordBytes, ErrorCode::data_source,
          "a text has {} bytes that the tokenizer does not split; at most {} are supported", word.size(),
          kMaxWordBytes - 1);
  if (model_.symbols == SymbolKind::bytes)
    encode_cached(word, {}, ids, memory);
  else
    encode_code_points(word, ids, memory);
}

void BytePairEncoding::encode_code_points(std::string_view word, std::vector<std::int32_t>& ids,
                                          MergeMemory& memory) const {
  if (model_.whole_words_first) {
    if (const auto whole = model_.ids.find(word); whole != model_.ids.end()) return ids.push_back(whole->second);
  }
  make_symbols(word, memory.symbols);
  const Symbols symbols = memory.symbols;
  if (!joints_) return merge(symbols, ids, memory);
  for (std::size_t begin = 0, end = 0; begin < symbols.size(); begin = end) {
    throw_if_stopped();
    for (end = begin + 1; end < symbols.size(); ++end)
      if (joints_->find(symbols[end - 1].id, symbols[end].id).rank == MergeTable::kNoMerge) break;
    const Symbols part = symbols.subspan(begin, end - begin);
    if (part.size() == 1) {
      ids.push_back(part[0].id);
      continue;
    }
    const std::size_t first_byte = part.front().begin, last_byte = part.back().begin;
    encode_cached(word.substr(first_byte, last_byte + n_bytes_of(word[last_byte]) - first_byte), part, ids, memory);
  }
}

/// `symbols` are those of `part`, if they are already known.
void BytePairEncoding::encode_cached(std::string_view part, Symbols symbols, std::vector<std::int32_t>& ids,
                                     MergeMemory& memory) const {
  const bool is_cached = WordCache::accepts(part);
  const WordCache::Key key(is_cached ? part : std::string_view());
  if (is_cached) {
    if (const auto found = memory.cache.find(key)) {
      ids.insert(ids.end(), found->begin(), found->end());
      return;
    }
  }
  const std::size_t n_before = ids.size();
  if (!symbols.empty()) {
    merge(symbols, ids, memory);
  } else if (const auto whole = model_.whole_words_first ? model_.ids.find(part) : model_.ids.end();
             whole != model_.ids.end()) {
    ids.push_back(whole->second);
  } else {
    make_symbols(part, memory.symbols);
    merge(memory.symbols, ids, memory);
  }
  if (is_cached) memory.cache.insert(key, std::span(ids).subspan(n_before));
}

// ---- Symbols --------------------------------------------------------------------------------------------------------

/// Unknown symbols are treated as in Hugging Face's library: the unknown token is put directly before the next symbol
/// that is in the vocabulary, and therefore after the bytes of a symbol in between.
void BytePairEncoding::make_symbols(std::string_view word, std::vector<MergeMemory::Symbol>& symbols) const {
  symbols.clear();
  const bool is_bytes = model_.symbols == SymbolKind::bytes;
  std::optional<std::uint32_t> unknown_begin;
  const auto put_unknown = [&] {
    if (unknown_begin) symbols.push_back({*model_.unknown, *unknown_begin});
    unknown_begin.reset();
  };
  for (std::size_t i = 0; i < word.size();) {
    throw_if_stopped();
    const std::size_t n = is_bytes ? 1 : n_bytes_of(word[i]);
    const std::string_view symbol = word.substr(i, n);
    const auto begin = static_cast<std::uint32_t>(i);
    i += n;
    const std::int32_t id = id_of_symbol(symbol);
    if (id >= 0) {
      put_unknown();
      symbols.push_back({id, begin});
      continue;
    }
    const auto byte_id = [&](char c) { return (*model_.byte_fallback)[static_cast<unsigned char>(c)]; };
    if (model_.byte_fallback && std::ranges::all_of(symbol, [&](char c) { return byte_id(c) >= 0; })) {
      for (const char c : symbol) symbols.push_back({byte_id(c), begin});
      continue;
    }
    if (!model_.unknown) continue;
    if (!model_.fuse_unknown) put_unknown();
    if (!unknown_begin) unknown_begin = begin;
  }
  put_unknown();
}

// ---- Merging --------------------------------------------------------------------------------------------------------

void BytePairEncoding::merge(Symbols symbols, std::vector<std::int32_t>& ids, MergeMemory& memory) const {
  if (symbols.size() <= kMaxShort)
    merge_short(symbols, ids);
  else
    merge_long(symbols, ids, memory);
}

void BytePairEncoding::merge_short(Symbols symbols, std::vector<std::int32_t>& ids) const {
  std::array<std::int32_t, kMaxShort> id;
  std::array<MergeTable::Found, kMaxShort> pair;  // the merge of each symbol with the next one
  std::size_t n = symbols.size();
  for (std::size_t i = 0; i < n; ++i) {
    id[i] = symbols[i].id;
    if (i > 0) pair[i - 1] = merges_.find(id[i - 1], id[i]);
  }
  while (n > 1) {
    std::size_t best = 0;
    for (std::size_t i = 1; i + 1 < n; ++i)
      if (pair[i].rank < pair[best].rank) best = i;
    if (pair[best].rank == MergeTable::kNoMerge) break;
    id[best] = pair[best].result;
    std::copy(id.begin() + best + 2, id.begin() + n, id.begin() + best + 1);
    std::copy(pair.begin() + best + 1, pair.begin() + n - 1, pair.begin() + best);
    --n;
    if (best > 0) pair[best - 1] = merges_.find(id[best - 1], id[best]);
    if (best + 1 < n) pair[best] = merges_.find(id[best], id[best + 1]);
  }
  ids.insert(ids.end(), id.begin(), id.begin() + n);
}

/// Uses a linked list of the tokens, and a heap of the pairs that can be merged, as rank and position. A pair whose
/// tokens have changed since is recognised by its rank.
void BytePairEncoding::merge_long(Symbols symbols, std::vector<std::int32_t>& ids, MergeMemory& memory) const {
  std::vector<MergeMemory::Link>& links = memory.links;
  std::vector<std::uint64_t>& queue = memory.queue;
  const auto n = static_cast<std::int32_t>(symbols.size());
  const auto at = [&](std::int32_t i) -> MergeMemory::Link& { return links[static_cast<std::size_t>(i)]; };
  const auto queued = [](std::uint32_t rank, std::int32_t i) {
    return std::uint64_t{rank} << 32 | static_cast<std::uint32_t>(i);
  };
  const auto find_merge = [&](std::int32_t i) {
    throw_if_stopped();
    MergeMemory::Link& link = at(i);
    link.merge = link.next < n ? merges_.find(link.id, at(link.next).id) : MergeTable::Found{MergeTable::kNoMerge, 0};
    return link.merge.rank != MergeTable::kNoMerge;
  };

  links.resize(symbols.size());
  for (std::int32_t i = 0; i < n; ++i) at(i) = {symbols[static_cast<std::size_t>(i)].id, i - 1, i + 1, {}};
  queue.clear();
  for (std::int32_t i = 0; i < n; ++i)
    if (find_merge(i)) queue.push_back(queued(at(i).merge.rank, i));
  std::ranges::make_heap(queue, std::greater());
  const auto update = [&](std::int32_t i) {
    if (!find_merge(i)) return;
    queue.push_back(queued(at(i).merge.rank, i));
    std::ranges::push_heap(queue, std::greater());
  };
  while (!queue.empty()) {
    std::ranges::pop_heap(queue, std::greater());
    const auto rank = static_cast<std::uint32_t>(queue.back() >> 32);
    const auto i = static_cast<std::int32_t>(queue.back());
    queue.pop_back();
    MergeMemory::Link& link = at(i);
    if (link.merge.rank != rank) continue;
    link.id = link.merge.result;
    MergeMemory::Link& right = at(link.next);
    right.merge.rank = MergeTable::kNoMerge;
    link.next = right.next;
    if (link.next < n) at(link.next).previous = i;
    if (link.previous >= 0) update(link.previous);
    update(i);
  }
  for (std::int32_t i = 0; i < n; i = at(i).next) ids.push_back(at(i).id);
}

}  // namespace lockstep::text

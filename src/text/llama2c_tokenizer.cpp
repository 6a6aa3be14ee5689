// Source: karpathy/llama2.c, build_tokenizer(), encode() and decode() of run.c.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "lockstep/error.h"
#include "text/tokenizer_parts.h"

namespace lockstep::text {
namespace {

constexpr std::int32_t kMaxTokenBytes = 1024;
constexpr std::int32_t kBegin = 1, kEnd = 2, kFirstByte = 3, kBytes = 256;

struct Entry {
  float score = 0;
  std::string text;
};

class Reader {
 public:
  Reader(const std::string& path, std::string_view content) : path_(path), rest_(content) {}

  bool at_end() const { return rest_.empty(); }
  template <typename T>
  T number() {
    T value;
    std::memcpy(&value, bytes(sizeof value).data(), sizeof value);
    return value;
  }
  std::string_view bytes(std::size_t n) {
    require(n <= rest_.size(), ErrorCode::model_file_damaged, "{} ends in the middle of a token", path_);
    const std::string_view taken = rest_.substr(0, n);
    rest_.remove_prefix(n);
    return taken;
  }

 private:
  const std::string& path_;
  std::string_view rest_;
};

std::vector<Entry> read_entries(const std::string& path, const std::string& content) {
  Reader reader(path, content);
  std::vector<Entry> entries;
  const auto longest = reader.number<std::int32_t>();
  require(longest > 0 && longest <= kMaxTokenBytes, ErrorCode::model_file_damaged,
          "{}: the longest token is said to have {} bytes; at most {} are possible", path, longest, kMaxTokenBytes);
  while (!reader.at_end()) {
    Entry entry;
    entry.score = reader.number<float>();
    const auto n = reader.number<std::int32_t>();
    require(n > 0 && n <= longest, ErrorCode::model_file_damaged,
            "{}: token {} has {} bytes, and the longest is said to have {}", path, entries.size(), n, longest);
    require(!std::isnan(entry.score), ErrorCode::model_file_damaged, "{}: the score of token {} is not a number", path,
            entries.size());
    entry.text = reader.bytes(static_cast<std::size_t>(n));
    entries.push_back(std::move(entry));
  }
  for (std::int32_t byte = 0; byte < kBytes; ++byte) {
    const auto id = static_cast<std::size_t>(kFirstByte + byte);
    const std::string expected = fmt::format("<0x{:02X}>", byte);
    require(id < entries.size() && entries[id].text == expected, ErrorCode::model_file_damaged,
            "{}: token {} is not {}, so this is not a tokenizer.bin of llama2.c", path, id, expected);
  }
  return entries;
}

/// Two neighbours can be merged if their concatenated text is a token. The merges with the highest scores come first.
std::vector<Merge> find_merges(const std::vector<Entry>& entries, const IdsByText& ids) {
  std::vector<float> scores;
  for (const Entry& entry : entries) scores.push_back(entry.score);
  std::ranges::sort(scores, std::greater());
  scores.erase(std::unique(scores.begin(), scores.end()), scores.end());  // clang 14 cannot compile ranges::unique

  std::vector<Merge> merges;
  for (std::size_t id = 0; id < entries.size(); ++id) {
    const std::string_view text = entries[id].text;
    const auto rank = std::ranges::lower_bound(scores, entries[id].score, std::greater()) - scores.begin();
    for (std::size_t cut = 1; cut < text.size(); ++cut) {
      const auto left = ids.find(text.substr(0, cut)), right = ids.find(text.substr(cut));
      if (left == ids.end() || right == ids.end()) continue;
      merges.push_back({left->second, right->second, static_cast<std::int32_t>(id), static_cast<std::uint32_t>(rank)});
    }
  }
  return merges;
}

}  // namespace

TokenizerParts read_llama2c_tokenizer(const NamedContent& file) {
  const auto& [path, content] = file;
  const std::vector<Entry> entries = read_entries(path, content);

  TokenizerParts parts;
  BytePairModel& model = parts.model;
  model.symbols = SymbolKind::code_points;
  model.byte_fallback.emplace();
  for (std::int32_t byte = 0; byte < kBytes; ++byte)
    (*model.byte_fallback)[static_cast<std::size_t>(byte)] = kFirstByte + byte;
  for (std::size_t id = 0; id < entries.size(); ++id) {
    const bool is_new = model.ids.emplace(entries[id].text, static_cast<std::int32_t>(id)).second;
    require(is_new, ErrorCode::model_file_damaged, "{}: token {} occurs twice", path, id);
    parts.tokens.emplace_back(entries[id].text);
  }
  model.merges = find_merges(entries, model.ids);
  parts.normalizer = Normalizer({{NormalizerStep::Kind::prepend, "", " "}});
  parts.decoder = Decoder({{DecoderStep::Kind::byte_fallback, "", "", 0, 0},
                           {DecoderStep::Kind::fuse, "", "", 0, 0},
                           {DecoderStep::Kind::strip, "", " ", 1, 0}},
                          "");
  parts.prefix = {kBegin};
  parts.begin_token = kBegin;
  parts.end_token = kEnd;
  parts.canonical = content;
  return parts;
}

}  // namespace lockstep::text

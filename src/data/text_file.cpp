#include "data/text_file.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>

#include "base/hash.h"
#include "data/data_file.h"
#include "lockstep/error.h"

namespace lockstep::data {
namespace {

constexpr std::int64_t kPositionsPerRead = 1 << 17;  // 1 MiB
constexpr std::int64_t kAnswersPerRead = 1 << 16;    // 1 MiB
constexpr std::size_t kMaxListed = 20;               // damaged blocks that a report lists

ByteRange range_of(const InputFile& file, const std::string& name, const hdf5::DatasetPlace& place) {
  check_inside(file, name, place);
  return {place.offset, place.size_bytes};
}

TextDescription read_description(const hdf5::Reader& hdf5, const std::string& path) {
  TextDescription out;
  const std::int64_t vocabulary_size = hdf5.integer("vocabulary_size");
  require(vocabulary_size >= 1 && vocabulary_size <= std::numeric_limits<std::int32_t>::max(), ErrorCode::data_format,
          "{}: a vocabulary of {} tokens is not possible", path, vocabulary_size);
  out.vocabulary_size = static_cast<int>(vocabulary_size);
  out.tokenizer_hash = hdf5.text("tokenizer_hash");
  if (hdf5.has_attribute("end_token")) {
    const std::int64_t end_token = hdf5.integer("end_token");
    require(end_token >= 0 && end_token < vocabulary_size, ErrorCode::data_format,
            "{}: the end token {} is not one of the {} tokens of the vocabulary", path, end_token, vocabulary_size);
    out.end_token = static_cast<std::int32_t>(end_token);
  }
  out.source = optional_text(hdf5, "source");
  out.chat_template = optional_text(hdf5, "chat_template");
  out.chat_template_source = optional_text(hdf5, "chat_template_source");
  if (const std::string tokens = optional_text(hdf5, "special_tokens"); !tokens.empty()) {
    const nlohmann::json object = nlohmann::json::parse(tokens, nullptr, false);
    require(object.is_object() && std::ranges::all_of(object, [](const auto& text) { return text.is_string(); }),
            ErrorCode::data_format, "{}: special_tokens must be an object of texts, but is {}", path, tokens);
    object.get_to(out.special_tokens);
  }
  return out;
}

std::uint64_t n_blocks(const ByteRange& tokens) { return StoredBytes::n_chunks(tokens.size_bytes, kTokenBlockBytes); }

void read_answers_metadata(const InputFile& file, const hdf5::Reader& hdf5, TextFile& out) {
  const hdf5::DatasetPlace answers = hdf5.dataset("answers");
  check_kind(answers.type == "uint64" && answers.dims.size() == 2 && answers.dims[1] == 2 && answers.dims[0] > 0, file,
             "answers", "uint64 (answers, 2)", answers);
  out.answers = range_of(file, "answers", answers);
  out.n_answers = static_cast<std::int64_t>(answers.dims[0]);
  out.answers_xxh3 = optional_text(hdf5, "answers_xxh3");
}

TextFile read_text_metadata(const InputFile& file) {
  const std::string& path = file.path();
  const hdf5::Reader hdf5 = open_hdf5(path);
  read_format_version(hdf5, path, kTextFormat, kChatFormatVersion);
  TextFile out;
  const hdf5::DatasetPlace tokens = hdf5.dataset("tokens"), documents = hdf5.dataset("documents");
  const hdf5::DatasetPlace tokenizer = hdf5.dataset("tokenizer");
  check_kind((tokens.type == "uint16" || tokens.type == "uint32") && tokens.dims.size() == 1, file, "tokens",
             "uint16 or uint32 (tokens)", tokens);
  check_kind(documents.type == "uint64" && documents.dims.size() == 1, file, "documents", "uint64 (documents + 1)",
             documents);
  check_kind(tokenizer.type == "uint8" && tokenizer.dims.size() == 1, file, "tokenizer", "uint8 (bytes)", tokenizer);
  require(tokens.dims[0] > 0 && documents.dims[0] > 1, ErrorCode::data_source, "{} contains no tokens", path);
  require(documents.dims[0] - 1 <= tokens.dims[0], ErrorCode::data_format,
          "{}: {} documents cannot have {} tokens; each has at least one", path, documents.dims[0] - 1, tokens.dims[0]);
  out.tokens = range_of(file, "tokens", tokens);
  out.documents = range_of(file, "documents", documents);
  out.tokenizer = range_of(file, "tokenizer", tokenizer);
  require(out.tokenizer.size_bytes <= kMaxTokenizerBytes, ErrorCode::data_format,
          "{}: its tokenizer has {} bytes; at most {} are possible", path, out.tokenizer.size_bytes,
          kMaxTokenizerBytes);
  out.token_bytes = tokens.type == "uint16" ? 2 : 4;
  // Both fit into 64 signed bits, since the data are inside the file.
  out.n_tokens = static_cast<std::int64_t>(tokens.dims[0]);
  out.n_documents = static_cast<std::int64_t>(documents.dims[0]) - 1;
  if (std::ranges::count(hdf5.datasets(), "/answers") > 0) read_answers_metadata(file, hdf5, out);
  if (std::ranges::count(hdf5.datasets(), "/tokens_xxh3") > 0) {
    const hdf5::DatasetPlace hashes = hdf5.dataset("tokens_xxh3");
    check_kind(hashes.type == "uint64" && hashes.dims.size() == 1 && hashes.dims[0] == n_blocks(out.tokens), file,
               "tokens_xxh3", "uint64 (blocks of 16 MiB)", hashes);
    out.block_hashes = range_of(file, "tokens_xxh3", hashes);
  }
  out.description = read_description(hdf5, path);
  out.documents_xxh3 = optional_text(hdf5, "documents_xxh3");
  return out;
}

/// The largest of the ids in `bytes`, and its index.
template <typename Stored>
std::pair<std::uint32_t, std::size_t> largest_id(std::span<const std::byte> bytes) {
  std::uint32_t largest = 0;
  std::size_t at = 0;
  for (std::size_t i = 0; i < bytes.size() / sizeof(Stored); ++i) {
    Stored id;
    std::memcpy(&id, bytes.data() + i * sizeof id, sizeof id);
    if (id > largest) largest = id, at = i;
  }
  return {largest, at};
}

std::vector<std::uint64_t> read_block_hashes(const InputFile& file, const TextFile& layout) {
  std::vector<std::uint64_t> hashes(layout.block_hashes.size_bytes / sizeof(std::uint64_t));
  file.read(layout.block_hashes.offset, std::as_writable_bytes(std::span(hashes)), "its block hashes");
  return hashes;
}

/// Checks the hash of every block of /tokens, and every id.
void verify_tokens(const InputFile& file, const TextFile& layout, const std::function<void(std::uint64_t)>& progress,
                   Verification& out) {
  const std::uint64_t n = n_blocks(layout.tokens);
  if (layout.block_hashes.size_bytes == 0) out.unchecked.emplace_back("'/tokens': the file has no tokens_xxh3");
  const std::vector<std::uint64_t> stored = read_block_hashes(file, layout);
  std::vector<std::byte> buffer(std::min(kTokenBlockBytes, layout.tokens.size_bytes));
  std::uint64_t n_damaged = 0;
  for (std::uint64_t b = 0; b < n; ++b) {
    const std::uint64_t begin = b * kTokenBlockBytes;
    const auto bytes = std::span(buffer).first(std::min(kTokenBlockBytes, layout.tokens.size_bytes - begin));
    file.read(layout.tokens.offset + begin, bytes, "/tokens");
    if (progress) progress(bytes.size());
    std::string problem;
    if (const std::uint64_t found = hash_bytes(bytes); b < stored.size() && found != stored[b])
      problem = fmt::format("is damaged: its xxh3 is {}, but {} is stored", hash_text(found), hash_text(stored[b]));
    const auto [id, at] = layout.token_bytes == 2 ? largest_id<std::uint16_t>(bytes) : largest_id<std::uint32_t>(bytes);
    if (problem.empty() && id >= static_cast<std::uint32_t>(layout.description.vocabulary_size))
      problem =
          fmt::format("has the id {} at token {}, but the vocabulary has {} tokens", id,
                      begin / static_cast<std::uint64_t>(layout.token_bytes) + at, layout.description.vocabulary_size);
    if (!problem.empty() && ++n_damaged <= kMaxListed)
      out.damaged.push_back(fmt::format("{}: block {} of '/tokens' (bytes {} to {}) {}", file.path(), b,
                                        layout.tokens.offset + begin, layout.tokens.offset + begin + bytes.size(),
                                        problem));
  }
  if (n_damaged > kMaxListed)
    out.damaged.push_back(
        fmt::format("{}: {} more of the {} blocks of '/tokens' are damaged", file.path(), n_damaged - kMaxListed, n));
}

/// Calls `use(number, answer)` for all answers. The memory it needs does not depend on their number.
template <typename Use>
void for_each_answer(const InputFile& file, const TextFile& layout, Use use) {
  std::vector<TokenRange> answers;
  for (std::int64_t first = 0; first < layout.n_answers; first += kAnswersPerRead) {
    answers.resize(static_cast<std::size_t>(std::min(kAnswersPerRead, layout.n_answers - first)));
    file.read(layout.answers.offset + static_cast<std::uint64_t>(first) * sizeof(TokenRange),
              std::as_writable_bytes(std::span(answers)), "its answers");
    for (std::size_t i = 0; i < answers.size(); ++i) use(first + static_cast<std::int64_t>(i), answers[i]);
  }
}

/// Iterates over the positions of documents.
class Positions {
 public:
  Positions(const InputFile& file, const TextFile& layout) : file_(file), layout_(layout) {}
  std::uint64_t next() {
    if (at_ == held_.size()) {
      held_ = read_documents(file_, layout_, n_read_, std::min(kPositionsPerRead, layout_.n_documents + 1 - n_read_));
      n_read_ += static_cast<std::int64_t>(held_.size());
      at_ = 0;
    }
    return held_.at(at_++);
  }

 private:
  const InputFile& file_;
  const TextFile& layout_;
  std::vector<std::uint64_t> held_;
  std::size_t at_ = 0;
  std::int64_t n_read_ = 0;
};

}  // namespace

bool is_text_file(const InputFile& file) {
  std::array<std::byte, hdf5::kTextMagic.size()> head{};
  const ReadOutcome outcome = file.try_read(0, head);
  const hdf5::FileKind kind = outcome == ReadOutcome::complete ? hdf5::kind_of(head) : hdf5::FileKind::unknown;
  if (kind == hdf5::FileKind::text || kind == hdf5::FileKind::images) return kind == hdf5::FileKind::text;
  const auto read_format = [&] { return optional_text(open_hdf5(file.path()), "format"); };
  const ChildVerdict verdict = run_in_limited_child(read_format);
  if (!verdict.good && !verdict.code) fail_foreign(file, verdict);  // a second look would take as long
  return verdict.good && verdict.result == kTextFormat;
}

TextFile open_text_file(const InputFile& file) {
  const std::optional<UserBlock> block = checked_user_block(file, hdf5::FileKind::text);
  auto out = layout_of<TextFile>(file, read_in_child(file, [&] { return bytes_of_layout(read_text_metadata(file)); }));
  if (!block)
    require_no_user_block(file, hdf5::FileKind::text);
  else if (StoredBytes::contiguous(out.tokens) != block->samples || out.documents != block->index)
    fail_user_block(file, hdf5::FileKind::text);
  out.has_user_block = block.has_value();
  return out;
}

std::string content_hash(const InputFile& file, const TextFile& layout) {
  const std::vector<std::uint64_t> blocks = read_block_hashes(file, layout);
  if (blocks.empty()) return "";
  StreamingHash hash;
  hash.update(std::as_bytes(std::span(blocks)));
  for (const std::string& text : {layout.documents_xxh3, layout.answers_xxh3})
    hash.update(std::as_bytes(std::span(text)));
  return hash_text(hash.digest());
}

std::vector<std::uint64_t> read_documents(const InputFile& file, const TextFile& layout, std::int64_t first,
                                          std::int64_t n) {
  std::vector<std::uint64_t> positions(static_cast<std::size_t>(n));
  file.read(layout.documents.offset + static_cast<std::uint64_t>(first) * sizeof(std::uint64_t),
            std::as_writable_bytes(std::span(positions)), "its documents");
  return positions;
}

std::int64_t check_documents(const InputFile& file, const TextFile& layout) {
  const auto n_tokens = static_cast<std::uint64_t>(layout.n_tokens);
  Positions positions(file, layout);
  std::uint64_t last = positions.next(), longest = 0;
  require(last == 0, ErrorCode::data_format, "{}: '/documents' must go from 0 to the {} tokens, but begins with {}",
          file.path(), n_tokens, last);
  for (std::int64_t i = 1; i <= layout.n_documents; ++i) {
    const std::uint64_t next = positions.next();
    require(next > last && next <= n_tokens, ErrorCode::data_format,
            "{}: '/documents' must ascend from 0 to the {} tokens, but position {} is {}, after {}", file.path(),
            n_tokens, i, next, last);
    longest = std::max(longest, next - last);
    last = next;
  }
  require(last == n_tokens, ErrorCode::data_format, "{}: '/documents' must go from 0 to the {} tokens, but ends at {}",
          file.path(), n_tokens, last);
  return static_cast<std::int64_t>(longest);
}

void check_answers(const InputFile& file, const TextFile& layout) {
  Positions positions(file, layout);
  std::uint64_t document_end = positions.next(), last = 0;
  for_each_answer(file, layout, [&](std::int64_t number, const TokenRange& answer) {
    require(
        answer.begin >= last && answer.begin < answer.end && answer.end <= static_cast<std::uint64_t>(layout.n_tokens),
        ErrorCode::data_format,
        "{}: '/answers' must ascend from 0 to the {} tokens, but answer {} is from {} to {}, after {}", file.path(),
        layout.n_tokens, number, answer.begin, answer.end, last);
    last = answer.end;
    while (document_end <= answer.begin) document_end = positions.next();
    require(answer.end <= document_end, ErrorCode::data_format,
            "{}: answer {} of '/answers' is from {} to {}, but its document ends at {}", file.path(), number,
            answer.begin, answer.end, document_end);
  });
}

std::vector<TokenRange> read_answers(const InputFile& file, const TextFile& layout, const TokenRange& tokens) {
  std::vector<TokenRange> out;
  for_each_answer(file, layout, [&](std::int64_t, const TokenRange& answer) {
    if (answer.begin >= tokens.begin && answer.begin < tokens.end) out.push_back(answer);
  });
  return out;
}

std::string read_tokenizer(const InputFile& file, const TextFile& layout) {
  std::string json(layout.tokenizer.size_bytes, '\0');
  file.read(layout.tokenizer.offset, std::as_writable_bytes(std::span(json)), "its tokenizer");
  return json;
}

Verification verify_text_file(const InputFile& file, const TextFile& layout,
                              const std::function<void(std::uint64_t)>& progress) {
  Verification out = begin_verification(layout.has_user_block);
  verify_tokens(file, layout, progress, out);
  verify_bytes(file, "documents", StoredBytes::contiguous(layout.documents), layout.documents_xxh3, progress, out);
  if (layout.has_answers())
    verify_bytes(file, "answers", StoredBytes::contiguous(layout.answers), layout.answers_xxh3, progress, out);
  try {
    check_documents(file, layout);
    check_answers(file, layout);
  } catch (const Error& error) {
    out.damaged.emplace_back(error.what());
  }
  return out;
}

}  // namespace lockstep::data

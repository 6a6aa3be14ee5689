// Writing a text set: tokens and positions of documents are collected in files without a name, and copied into the HDF5
// file when their number is known. Then the user block is added and the file is published.
#include <fcntl.h>

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>

#include "base/hash.h"
#include "base/printable.h"
#include "base/utf8.h"
#include "data/data_file.h"
#include "data/text_file.h"
#include "hdf5/writer.h"
#include "lockstep/error.h"

namespace lockstep::data {
namespace {

constexpr std::size_t kBufferBytes = 1u << 20;

/// Collects bytes that will be part of a file, when their number is not known in advance.
class Collected {
 public:
  explicit Collected(const std::string& path) : path_(path), file_(create_unnamed_file(path)) {
    buffer_.reserve(kBufferBytes);
  }
  std::uint64_t size_bytes() const { return written_ + buffer_.size(); }

  void append(std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
      const std::size_t n = std::min(bytes.size(), kBufferBytes - buffer_.size());
      buffer_.insert(buffer_.end(), bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(n));
      bytes = bytes.subspan(n);
      if (buffer_.size() == kBufferBytes) flush();
    }
  }
  void copy_to(const Descriptor& target, std::uint64_t offset) {
    flush();
    std::vector<std::byte> buffer(kBufferBytes);
    for (std::uint64_t done = 0; done < written_;) {
      const auto part = std::span(buffer).first(std::min<std::uint64_t>(kBufferBytes, written_ - done));
      read_at(file_, path_, part, done);
      write_at(target, path_, part, offset + done);
      done += part.size();
    }
  }

 private:
  void flush() {
    write_at(file_, path_, buffer_, written_);
    written_ += buffer_.size();
    buffer_.clear();
  }

  std::string path_;  // of the output, for messages
  Descriptor file_;
  std::vector<std::byte> buffer_;
  std::uint64_t written_ = 0;
};

/// The hash of each block of kTokenBlockBytes.
class BlockHashes {
 public:
  void update(std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
      const auto part = bytes.first(std::min<std::uint64_t>(bytes.size(), kTokenBlockBytes - in_block_));
      hash_->update(part);
      in_block_ += part.size();
      bytes = bytes.subspan(part.size());
      if (in_block_ == kTokenBlockBytes) end_block();
    }
  }
  const std::vector<std::uint64_t>& finish() {
    if (in_block_ > 0) end_block();
    return hashes_;
  }

 private:
  void end_block() {
    hashes_.push_back(hash_->digest());
    hash_.emplace();
    in_block_ = 0;
  }

  std::optional<StreamingHash> hash_{std::in_place};
  std::uint64_t in_block_ = 0;
  std::vector<std::uint64_t> hashes_;
};

}  // namespace

struct TextFileWriter::State {
  PendingFile pending;
  std::string path;
  std::uint32_t vocabulary_size;
  int token_bytes;
  Collected tokens, documents;
  std::optional<Collected> answers;  // only for conversations
  BlockHashes token_hashes;
  StreamingHash documents_hash, answers_hash;
  std::uint64_t n_documents = 0, last_position = 0;
  std::uint64_t last_answer_end = 0;
  std::vector<std::byte> narrowed;  // reused

  State(const std::string& target, bool replace, int vocabulary)
      : pending(check_output(target, replace), PartialName::of_process),
        path(target),
        vocabulary_size(static_cast<std::uint32_t>(vocabulary)),
        token_bytes(token_bytes_for(vocabulary)),
        tokens(target),
        documents(target) {
    add_position();
  }

  std::uint64_t n_tokens() const { return tokens.size_bytes() / static_cast<std::uint64_t>(token_bytes); }

  /// Adds the end of the last document, which is also the beginning of the next.
  void add_position() {
    last_position = n_tokens();
    const auto bytes = std::as_bytes(std::span(&last_position, 1));
    documents.append(bytes);
    documents_hash.update(bytes);
  }

  template <typename Stored>
  void narrow(std::span<const std::int32_t> ids) {
    narrowed.resize(ids.size() * sizeof(Stored));
    for (std::size_t i = 0; i < ids.size(); ++i) {
      require(static_cast<std::uint32_t>(ids[i]) < vocabulary_size, ErrorCode::data_source,
              "{}: the id {} of token {} is not one of the {} tokens of the vocabulary", path, ids[i], n_tokens() + i,
              vocabulary_size);
      const auto stored = static_cast<Stored>(ids[i]);
      std::memcpy(narrowed.data() + i * sizeof stored, &stored, sizeof stored);
    }
  }

  void write_hdf5(const TextDescription& description, const std::string& tokenizer_json) {
    hdf5::Writer hdf5(pending.partial_path(), {.user_block_bytes = hdf5::kUserBlockBytes, .name = path});
    const std::uint64_t tokens_offset =
        hdf5.reserve_dataset("/tokens", token_bytes == 2 ? "uint16" : "uint32", {n_tokens()});
    const std::uint64_t documents_offset = hdf5.reserve_dataset("/documents", "uint64", {n_documents + 1});
    const std::uint64_t answers_offset =
        answers ? hdf5.reserve_dataset("/answers", "uint64", {answers->size_bytes() / sizeof(TokenRange), 2}) : 0;
    const std::vector<std::uint64_t>& hashes = token_hashes.finish();
    hdf5.create_dataset("tokens_xxh3", "uint64", {hashes.size()});
    hdf5.write_rows("tokens_xxh3", 0, hashes.size(), hashes.data());
    hdf5.create_dataset("tokenizer", "uint8", {tokenizer_json.size()});
    hdf5.write_rows("tokenizer", 0, tokenizer_json.size(), tokenizer_json.data());
    hdf5.attribute("format", std::string(kTextFormat));
    hdf5.attribute("format_version", answers ? kChatFormatVersion : kTextFormatVersion);
    hdf5.attribute("vocabulary_size", std::int64_t{description.vocabulary_size});
    hdf5.attribute("tokenizer_hash", description.tokenizer_hash);
    if (description.end_token) hdf5.attribute("end_token", std::int64_t{*description.end_token});
    hdf5.attribute("source", valid_utf8(description.source));
    hdf5.attribute("documents_xxh3", hash_text(documents_hash.digest()));
    if (answers) {
      hdf5.attribute("answers_xxh3", hash_text(answers_hash.digest()));
      hdf5.attribute("chat_template", valid_utf8(description.chat_template));
      hdf5.attribute("chat_template_source", valid_utf8(description.chat_template_source));
      hdf5.attribute("special_tokens", valid_utf8(nlohmann::json(description.special_tokens).dump()));
    }
    hdf5.close();
    const Descriptor file = open_file(pending.partial_path(), O_RDWR);
    tokens.copy_to(file, tokens_offset);
    documents.copy_to(file, documents_offset);
    if (answers) answers->copy_to(file, answers_offset);
    const ByteRange at{tokens_offset, n_tokens() * static_cast<std::uint64_t>(token_bytes)};
    write_user_block(pending.partial_path(), {StoredBytes::contiguous(at),
                                              {documents_offset, (n_documents + 1) * sizeof(std::uint64_t)},
                                              hdf5::FileKind::text});
  }
};

TextFileWriter::TextFileWriter(const std::string& path, bool replace, int vocabulary_size)
    : state_(std::make_unique<State>(path, replace, vocabulary_size)) {}

TextFileWriter::~TextFileWriter() = default;

void TextFileWriter::append(std::span<const std::int32_t> tokens) {
  State& s = *state_;
  if (s.token_bytes == 2)
    s.narrow<std::uint16_t>(tokens);
  else
    s.narrow<std::uint32_t>(tokens);
  s.tokens.append(s.narrowed);
  s.token_hashes.update(s.narrowed);
}

void TextFileWriter::add_answer(std::int64_t begin, std::int64_t end) {
  State& s = *state_;
  const TokenRange answer{s.last_position + static_cast<std::uint64_t>(begin),
                          s.last_position + static_cast<std::uint64_t>(end)};
  require(begin >= 0 && begin < end && answer.begin >= s.last_answer_end && answer.end <= s.n_tokens(),
          ErrorCode::internal, "{}: tokens {} to {} of document {} cannot be an answer", s.path, begin, end,
          s.n_documents);
  if (!s.answers) s.answers.emplace(s.path);
  const auto bytes = std::as_bytes(std::span(&answer, 1));
  s.answers->append(bytes);
  s.answers_hash.update(bytes);
  s.last_answer_end = answer.end;
}

void TextFileWriter::end_document() {
  State& s = *state_;
  require(s.n_tokens() > s.last_position, ErrorCode::internal, "{}: document {} has no tokens", s.path, s.n_documents);
  ++s.n_documents;
  s.add_position();
}

std::int64_t TextFileWriter::n_documents() const { return static_cast<std::int64_t>(state_->n_documents); }
std::int64_t TextFileWriter::n_tokens() const { return static_cast<std::int64_t>(state_->n_tokens()); }

void TextFileWriter::finish(const TextDescription& description, const std::string& tokenizer_json) {
  State& s = *state_;
  require(s.n_documents > 0, ErrorCode::data_source, "{} is not written: there is no document with text", s.path);
  require(token_bytes_for(description.vocabulary_size) == s.token_bytes && !tokenizer_json.empty(), ErrorCode::internal,
          "{}: the description of the tokenizer is not possible", s.path);
  s.write_hdf5(description, tokenizer_json);
  s.pending.publish();
}

}  // namespace lockstep::data

#include "data/text_set.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <numeric>
#include <span>
#include <vector>

#include "data/file.h"
#include "data/text_file.h"
#include "lockstep/error.h"
#include "lockstep/philox.h"

namespace lockstep::data {
namespace {

constexpr std::int32_t kNoTarget = -1;

/// One sample, in the memory of its fields; each has T elements.
struct Window {
  std::span<std::int32_t> tokens, targets, document_start, positions;
};

Window window_of(const TextSetInfo& info, std::int64_t sample, std::span<const std::span<std::byte>> targets) {
  const auto length = static_cast<std::size_t>(info.sequence_length);
  const bool fits =
      targets.size() == 4 && std::ranges::all_of(targets, [&](auto t) { return t.size() == length * sizeof(int); });
  require(fits && sample >= 0 && sample < info.n_samples, ErrorCode::internal,
          "window {} of {} cannot be read into {} fields", sample, info.n_samples, targets.size());
  const auto numbers = [&](std::size_t field) {
    return std::span(reinterpret_cast<std::int32_t*>(targets[field].data()), length);
  };
  return {numbers(0), numbers(1), numbers(2), numbers(3)};
}

/// Fills everything but the tokens of elements [begin, end), which are one piece of text.
void describe_document(const Window& w, std::size_t begin, std::size_t end) {
  const std::size_t n = end - begin;
  std::ranges::copy(w.tokens.subspan(begin + 1, n - 1), w.targets.subspan(begin).begin());
  w.targets[end - 1] = kNoTarget;
  std::ranges::fill(w.document_start.subspan(begin, n), static_cast<std::int32_t>(begin));
  const auto positions = w.positions.subspan(begin, n);
  std::iota(positions.begin(), positions.end(), 0);
}

/// Widens ids that were read into the last bytes of `ids`. None is overwritten before it is read, since an id becomes
/// no shorter.
template <typename Stored>
void widen(std::span<std::int32_t> ids) {
  const auto* stored = reinterpret_cast<const std::byte*>(ids.data() + ids.size()) - ids.size() * sizeof(Stored);
  for (std::size_t i = 0; i < ids.size(); ++i) {
    Stored id;
    std::memcpy(&id, stored + i * sizeof id, sizeof id);
    ids[i] = static_cast<std::int32_t>(id);
  }
}

/// A file and a range of its documents.
class FileSet : public TextSet {
 public:
  FileSet(const std::string& path, std::int64_t first, std::int64_t end, int sequence_length)
      : file_(path), layout_(open_text_file(file_)) {
    const std::int64_t n = layout_.n_documents, last = end == 0 ? n : end;
    require(first >= 0 && first < last && last <= n, ErrorCode::data_range,
            "data.start={} and data.end={} are not a range of the {} documents of {}", first, end, n, path);
    require(sequence_length >= 2, ErrorCode::data_range,
            "a window of {} tokens has nothing to predict: data.sequence_length must be at least 2", sequence_length);
    check_documents(file_, layout_);
    documents_ = read_documents(file_, layout_, first, last - first + 1);
    info_.path = path;
    info_.first_document = first;
    info_.n_documents = last - first;
    info_.n_tokens = static_cast<std::int64_t>(documents_.back() - documents_.front());
    info_.sequence_length = sequence_length;
    info_.vocabulary_size = layout_.description.vocabulary_size;
    info_.tokenizer_hash = layout_.description.tokenizer_hash;
    info_.end_token = layout_.description.end_token;
  }
  const TextSetInfo& info() const final { return info_; }
  void require_unchanged() const final { file_.require_unchanged(); }
  double stored_bytes() const final { return static_cast<double>(info_.sequence_length) * layout_.token_bytes; }

 protected:
  std::size_t length() const { return static_cast<std::size_t>(info_.sequence_length); }
  /// Positions in /tokens: of each document of the range, and the end of the last.
  const std::vector<std::uint64_t>& documents() const { return documents_; }

  void set_n_samples(std::uint64_t n) {
    require(n <= static_cast<std::uint64_t>(kMaxSamples), ErrorCode::data_range,
            "{} has {} windows of {} tokens; at most {} are possible: use a larger data.sequence_length, or a part of "
            "the documents (data.start, data.end)",
            info_.path, n, info_.sequence_length, kMaxSamples);
    info_.n_samples = static_cast<std::int64_t>(n);
  }

  /// Reads ids.size() tokens from position `begin` on.
  void read_tokens(std::uint64_t begin, std::span<std::int32_t> ids) const {
    const auto width = static_cast<std::size_t>(layout_.token_bytes);
    const auto bytes = std::as_writable_bytes(ids).last(ids.size() * width);
    const std::uint64_t offset = layout_.tokens.offset + begin * width;
    if (const ReadOutcome outcome = file_.try_read(offset, bytes); outcome != ReadOutcome::complete)
      file_.fail_read(outcome, errno, offset, bytes.size(),
                      fmt::format("tokens {} to {}", begin, begin + ids.size() - 1));
    if (width == 2) widen<std::uint16_t>(ids);
    const auto is_outside = [&](std::int32_t id) {
      return static_cast<std::uint32_t>(id) >= static_cast<std::uint32_t>(info_.vocabulary_size);
    };
    const auto bad = std::ranges::find_if(ids, is_outside);
    require(bad == ids.end(), ErrorCode::data_token,
            "{}: token {} has the id {}, but the vocabulary has {} tokens (0 to {})", info_.path,
            begin + static_cast<std::uint64_t>(bad - ids.begin()),
            bad == ids.end() ? 0 : static_cast<std::uint32_t>(*bad), info_.vocabulary_size, info_.vocabulary_size - 1);
  }

 private:
  InputFile file_;
  TextFile layout_;
  TextSetInfo info_;
  std::vector<std::uint64_t> documents_;
};

/// Windows of the stream of all documents.
class PackedSet final : public FileSet {
 public:
  PackedSet(const std::string& path, std::int64_t first, std::int64_t end, const TextWindows& windows)
      : FileSet(path, first, end, windows.sequence_length), cross_documents_(windows.cross_documents) {
    const auto n_tokens = static_cast<std::uint64_t>(info().n_tokens);
    require(n_tokens >= length(), ErrorCode::data_range,
            "the {} tokens of {} do not fill one window of {}: lower data.sequence_length, or use more text", n_tokens,
            path, length());
    set_n_samples(n_tokens / length());
  }

  void read(std::int64_t sample, std::uint32_t, std::span<const std::span<std::byte>> targets) const override {
    const Window w = window_of(info(), sample, targets);
    const std::uint64_t begin = documents().front() + static_cast<std::uint64_t>(sample) * length();
    read_tokens(begin, w.tokens);
    if (cross_documents_) return describe_document(w, 0, length());
    // The first document that ends after the beginning of the window.
    auto next = std::ranges::upper_bound(documents(), begin);
    for (std::size_t t = 0; t < length(); ++next) {
      const std::size_t document_end = std::min<std::uint64_t>(*next - begin, length());
      describe_document(w, t, document_end);
      t = document_end;
    }
  }

 private:
  bool cross_documents_;
};

/// One document per window.
class DocumentSet final : public FileSet {
 public:
  DocumentSet(const std::string& path, std::int64_t first, std::int64_t end, const TextWindows& windows)
      : FileSet(path, first, end, windows.sequence_length) {
    for (std::size_t i = 0; i + 1 < documents().size(); ++i)
      if (documents()[i + 1] - documents()[i] >= 2) kept_.push_back(i);
    require(!kept_.empty(), ErrorCode::data_empty,
            "{} has nothing to predict: none of its {} documents has 2 tokens or more", path, info().n_documents);
    set_n_samples(kept_.size());
  }

  void read(std::int64_t sample, std::uint32_t, std::span<const std::span<std::byte>> targets) const override {
    const Window w = window_of(info(), sample, targets);
    const std::uint64_t document = kept_[static_cast<std::size_t>(sample)], begin = documents()[document];
    const std::size_t n = std::min<std::uint64_t>(documents()[document + 1] - begin, length());
    read_tokens(begin, w.tokens.first(n));
    std::ranges::fill(w.tokens.subspan(n), 0);
    describe_document(w, 0, length());
    std::ranges::fill(w.targets.subspan(n - 1), kNoTarget);
  }

 private:
  std::vector<std::uint64_t> kept_;  // the documents with 2 tokens or more
};

/// Token t of a sample is number t of its Philox stream.
class SyntheticText final : public TextSet {
 public:
  SyntheticText(std::uint32_t seed, const std::string& split, std::int64_t first_sample, TextSetInfo info)
      : seed_(seed), split_(name_hash(split)), first_sample_(first_sample), info_(std::move(info)) {}
  const TextSetInfo& info() const override { return info_; }

  void read(std::int64_t sample, std::uint32_t, std::span<const std::span<std::byte>> targets) const override {
    const Window w = window_of(info_, sample, targets);
    // As in the synthetic set of images, the epoch of the counter holds the split.
    const Philox random(seed_, RandomPurpose::synthetic, static_cast<std::uint32_t>(first_sample_ + sample), split_);
    std::array<std::uint32_t, 4> block{};
    for (std::size_t t = 0; t < w.tokens.size(); ++t) {
      if (t % 4 == 0) block = random.block(t / 4);
      w.tokens[t] =
          static_cast<std::int32_t>(Philox::below(block[t % 4], static_cast<std::uint32_t>(info_.vocabulary_size)));
    }
    describe_document(w, 0, w.tokens.size());
  }

 private:
  std::uint32_t seed_, split_;
  std::int64_t first_sample_;
  TextSetInfo info_;
};

}  // namespace

std::vector<Field> TextSet::fields() const {
  constexpr std::uint8_t kNoTargetByte = 0xff;  // -1, byte by byte
  const Shape shape{info().sequence_length};
  return {{.name = kTokensField, .dtype = DType::int32, .shape = shape},
          {.name = kTargetsField, .dtype = DType::int32, .shape = shape, .padding_byte = kNoTargetByte},
          {.name = kDocumentStartField, .dtype = DType::int32, .shape = shape},
          {.name = kPositionsField, .dtype = DType::int32, .shape = shape}};
}

std::unique_ptr<TextSet> open_text_set(const std::string& path, std::int64_t first_document, std::int64_t end_document,
                                       const TextWindows& windows) {
  if (windows.pack) return std::make_unique<PackedSet>(path, first_document, end_document, windows);
  return std::make_unique<DocumentSet>(path, first_document, end_document, windows);
}

std::unique_ptr<TextSet> make_synthetic_text(std::uint32_t seed, std::int64_t n_samples, int sequence_length,
                                             int vocabulary_size, const std::string& split, std::int64_t first_sample) {
  require(n_samples > 0 && first_sample >= 0 && n_samples <= kMaxSamples - first_sample && sequence_length >= 2 &&
              vocabulary_size > 0,
          ErrorCode::data_range,
          "a synthetic set of {} windows of {} tokens from a vocabulary of {} is not possible: a window has at least 2 "
          "tokens, and the other numbers are positive",
          n_samples, sequence_length, vocabulary_size);
  TextSetInfo info;
  info.path = "synthetic";
  info.first_document = first_sample;
  info.n_samples = info.n_documents = n_samples;
  info.n_tokens = n_samples * sequence_length;
  info.sequence_length = sequence_length;
  info.vocabulary_size = vocabulary_size;
  return std::make_unique<SyntheticText>(seed, split, first_sample, std::move(info));
}

}  // namespace lockstep::data

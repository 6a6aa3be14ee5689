#include "data/text_set.h"

#include <algorithm>
#include <deque>
#include <numeric>
#include <utility>

#include "data/text_range.h"
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

/// Fills all fields except the tokens for elements [begin, end), which are one piece of text.
void describe_document(const Window& w, std::size_t begin, std::size_t end) {
  const std::size_t n = end - begin;
  std::ranges::copy(w.tokens.subspan(begin + 1, n - 1), w.targets.subspan(begin).begin());
  w.targets[end - 1] = kNoTarget;
  std::ranges::fill(w.document_start.subspan(begin, n), static_cast<std::int32_t>(begin));
  const auto positions = w.positions.subspan(begin, n);
  std::iota(positions.begin(), positions.end(), 0);
}

/// A file and a range of its documents.
class FileSet : public TextSet {
 public:
  FileSet(std::unique_ptr<const TextRange> range, int sequence_length) : range_(std::move(range)) {
    require(sequence_length >= 2, ErrorCode::data_range,
            "a window of {} tokens has nothing to predict: data.sequence_length must be at least 2", sequence_length);
    const TextDescription& description = range_->layout().description;
    info_.path = range_->file().path();
    info_.content_hash = content_hash(range_->file(), range_->layout());
    info_.first_document = range_->first_document();
    info_.n_documents = range_->n_documents();
    info_.n_tokens = range_->n_tokens();
    info_.sequence_length = sequence_length;
    info_.vocabulary_size = description.vocabulary_size;
    info_.tokenizer_hash = description.tokenizer_hash;
    info_.end_token = description.end_token;
    for (const TokenRange& answer : range_->answers())
      info_.n_answer_tokens += static_cast<std::int64_t>(answer.end - answer.begin);
  }
  const TextSetInfo& info() const final { return info_; }
  void require_unchanged() const final { range_->file().require_unchanged(); }
  double stored_bytes() const final {
    return static_cast<double>(info_.sequence_length) * range_->layout().token_bytes;
  }

 protected:
  std::size_t length() const { return static_cast<std::size_t>(info_.sequence_length); }
  bool has_answers() const { return range_->layout().has_answers(); }
  const std::vector<std::uint64_t>& documents() const { return range_->documents(); }
  const TextRange& range() const { return *range_; }
  /// The tokens of a document that fit into a window.
  std::size_t length_of(std::uint64_t document) const {
    return std::min<std::uint64_t>(documents()[document + 1] - documents()[document], length());
  }

  void set_n_samples(std::uint64_t n) {
    require(n <= static_cast<std::uint64_t>(kMaxSamples), ErrorCode::data_range,
            "{} has {} windows of {} tokens; at most {} are possible: use a larger data.sequence_length, or a part of "
            "the documents (data.start, data.end)",
            info_.path, n, info_.sequence_length, kMaxSamples);
    info_.n_samples = static_cast<std::int64_t>(n);
  }

  /// The documents with something to predict in their first T tokens. Counts those of conversations that are truncated
  /// or left out.
  std::vector<std::uint64_t> documents_to_predict() {
    std::vector<std::uint64_t> kept;
    for (std::size_t i = 0; i + 1 < documents().size(); ++i) {
      const TokenRange document = range_->document(i);
      // The first token of a document is not predicted.
      const TokenRange predicted{document.begin + 1, std::min<std::uint64_t>(document.begin + length(), document.end)};
      const bool is_kept = has_answers() ? !range_->answers_in(predicted).empty() : predicted.begin < predicted.end;
      if (is_kept) kept.push_back(i);
      if (!has_answers()) continue;
      info_.n_left_out += is_kept ? 0 : 1;
      info_.n_truncated += is_kept && document.end - document.begin > length() ? 1 : 0;
    }
    require(!kept.empty(), ErrorCode::data_source, "{} has nothing to predict: none of its {} {}", info_.path,
            info_.n_documents,
            has_answers() ? fmt::format("conversations has an answer in its first {} tokens; raise "
                                        "data.sequence_length",
                                        length())
                          : "documents has 2 tokens or more");
    return kept;
  }
  void set_used_part(std::uint64_t n_used_tokens) {
    info_.used_part = static_cast<double>(n_used_tokens) /
                      (static_cast<double>(info_.n_samples) * static_cast<double>(info_.sequence_length));
  }

  /// Puts the first tokens of a document at [at, at + n) of the window, with everything that belongs to them.
  void read_document(const Window& w, std::size_t at, std::uint64_t document, std::size_t n) const {
    const std::uint64_t begin = documents()[document];
    range_->read_tokens(begin, w.tokens.subspan(at, n));
    describe_document(w, at, at + n);
    if (!has_answers()) return;
    // Removes the targets outside of answers. Target t is token t + 1.
    std::size_t done = at;
    for (const TokenRange& answer : range_->answers_in({begin + 1, begin + n})) {
      const std::size_t first = at + (std::max(answer.begin, begin + 1) - begin - 1);
      const std::size_t last = at + (std::min<std::uint64_t>(answer.end, begin + n) - begin - 1);
      std::ranges::fill(w.targets.subspan(done, first - done), kNoTarget);
      done = last;
    }
    std::ranges::fill(w.targets.subspan(done, at + n - done), kNoTarget);
  }
  /// Fills the rest of a window, which predicts nothing and is a document of its own.
  static void pad(const Window& w, std::size_t at) {
    if (at == w.tokens.size()) return;
    std::ranges::fill(w.tokens.subspan(at), 0);
    describe_document(w, at, w.tokens.size());
    std::ranges::fill(w.targets.subspan(at), kNoTarget);
  }

 private:
  std::unique_ptr<const TextRange> range_;
  TextSetInfo info_;
};

/// Windows of the stream of all documents.
class PackedSet final : public FileSet {
 public:
  PackedSet(std::unique_ptr<const TextRange> range, const TextWindows& windows)
      : FileSet(std::move(range), windows.sequence_length), cross_documents_(windows.cross_documents) {
    const auto n_tokens = static_cast<std::uint64_t>(info().n_tokens);
    require(n_tokens >= length(), ErrorCode::data_range,
            "the {} tokens of {} do not fill one window of {}: lower data.sequence_length, or use more text", n_tokens,
            info().path, length());
    set_n_samples(n_tokens / length());
  }

  void read(std::int64_t sample, std::uint32_t, std::span<const std::span<std::byte>> targets) const override {
    const Window w = window_of(info(), sample, targets);
    const std::uint64_t begin = documents().front() + static_cast<std::uint64_t>(sample) * length();
    range().read_tokens(begin, w.tokens);
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

/// Windows of whole documents, which are truncated to T tokens: of one each or, packed, of as many as fit.
class DocumentSet final : public FileSet {
 public:
  DocumentSet(std::unique_ptr<const TextRange> range, const TextWindows& windows)
      : FileSet(std::move(range), windows.sequence_length), is_packed_(windows.pack), kept_(documents_to_predict()) {
    std::vector<std::uint32_t> lengths;
    lengths.reserve(kept_.size());
    for (const std::uint64_t document : kept_) lengths.push_back(static_cast<std::uint32_t>(length_of(document)));
    if (is_packed_) packing_ = WindowPacking(lengths, static_cast<std::uint32_t>(length()));
    set_n_samples(is_packed_ ? packing_.n_windows() : kept_.size());
    set_used_part(std::accumulate(lengths.begin(), lengths.end(), std::uint64_t{0}));
  }

  void read(std::int64_t sample, std::uint32_t, std::span<const std::span<std::byte>> targets) const override {
    const Window w = window_of(info(), sample, targets);
    const auto window = static_cast<std::size_t>(sample);
    if (!is_packed_) {
      const std::size_t n = length_of(kept_[window]);
      read_document(w, 0, kept_[window], n);
      // The padding continues the document: without packing, attention knows no boundaries.
      std::ranges::fill(w.tokens.subspan(n), 0);
      std::ranges::fill(w.targets.subspan(n), kNoTarget);
      std::ranges::fill(w.document_start, 0);
      std::iota(w.positions.begin(), w.positions.end(), 0);
      return;
    }
    std::size_t at = 0;
    for (const std::uint32_t number : packing_.documents(window)) {
      const std::size_t n = length_of(kept_[number]);
      read_document(w, at, kept_[number], n);
      at += n;
    }
    pad(w, at);
  }

 private:
  bool is_packed_;
  std::vector<std::uint64_t> kept_;  // the documents with something to predict
  WindowPacking packing_;
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
  auto range = std::make_unique<const TextRange>(path, first_document, end_document);
  const bool has_answers = range->layout().has_answers();
  require(!has_answers || !windows.cross_documents, ErrorCode::config_conflict,
          "data.cross_documents=true is for text, but {} contains conversations, which do not continue each other: set "
          "data.cross_documents=false",
          path);
  require(range->n_documents() <= kMaxSamples, ErrorCode::data_range,
          "{} has {} documents; at most {} are possible: use a part of them (data.start, data.end)", path,
          range->n_documents(), kMaxSamples);
  if (!windows.pack || has_answers) return std::make_unique<DocumentSet>(std::move(range), windows);
  return std::make_unique<PackedSet>(std::move(range), windows);
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

WindowPacking::WindowPacking(std::span<const std::uint32_t> lengths, std::uint32_t window) {
  struct Open {
    std::uint32_t room;
    std::vector<std::uint32_t> documents;
  };
  std::deque<Open> open;  // oldest first
  order_.reserve(lengths.size());
  const auto close_oldest = [&] {
    begins_.push_back(order_.size());
    order_.insert(order_.end(), open.front().documents.begin(), open.front().documents.end());
    open.pop_front();
  };
  for (std::uint32_t document = 0; document < lengths.size(); ++document) {
    auto place = std::ranges::find_if(open, [&](const Open& w) { return w.room >= lengths[document]; });
    if (place == open.end()) {
      if (open.size() == kOpenWindows) close_oldest();
      open.push_back({.room = window, .documents = {}});
      place = open.end() - 1;
    }
    place->room -= lengths[document];
    place->documents.push_back(document);
  }
  while (!open.empty()) close_oldest();
  begins_.push_back(order_.size());
}

}  // namespace lockstep::data

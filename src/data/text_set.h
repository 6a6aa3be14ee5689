// Data sets of tokenised text: windows of T tokens from one HDF5 file, or synthetic. Metadata is read through HDF5,
// tokens by pread.
//
// File layout (readable with plain h5py; documented in docs/data.md):
//   /tokens      (n_tokens) uint16 if the vocabulary has at most 65,536 tokens, otherwise uint32
//   /documents   (n_documents + 1) uint64, ascending: document i has the tokens documents[i] to documents[i + 1] - 1
//   /tokenizer   (bytes) uint8: the tokenizer.json that encoded the text
//   /tokens_xxh3 (blocks) uint64: the xxh3 of each 16 MiB of /tokens
//   /answers     (n_answers, 2) uint64, ascending, only of conversations: the tokens begin to end - 1 of /tokens are an
//                answer, each inside one document. Only answers count towards the loss
//   attributes of the root: format="lockstep-text", format_version, vocabulary_size, tokenizer_hash, end_token (may be
//   missing), source, documents_xxh3 (16 hex digits); of conversations also answers_xxh3, chat_template,
//   chat_template_source and special_tokens (JSON)
// The file begins with a 4 KiB user block (user_block.h). Files of other programs need none, and no checksums.
//
// A sample is a window of T tokens, which gives at most T - 1 predictions. Windows do not overlap.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "data/dataset.h"

namespace lockstep::data {

struct TextSetInfo : DatasetInfo {
  std::int64_t first_document = 0;             // position in the file of the first document (data.start)
  std::int64_t n_documents = 0, n_tokens = 0;  // of the range of documents
  int sequence_length = 0;                     // T, tokens
  int vocabulary_size = 0;
  std::string tokenizer_hash;             // empty: synthetic
  std::optional<std::int32_t> end_token;  // ends each document
  // For conversations; 0 for text
  std::int64_t n_answer_tokens = 0;  // in the answers of the range
  std::int64_t n_truncated = 0;      // conversations that are longer than a window
  std::int64_t n_left_out = 0;       // conversations without a token to predict in their first T tokens
  double used_part = 1;              // the part of the places in all windows that have a token
};

// The fields of a sample: all int32, of shape (T).
inline constexpr char kTokensField[] = "tokens";    // ids below vocabulary_size
inline constexpr char kTargetsField[] = "targets";  // the next token; -1: nothing is predicted here
/// For each token, the position in the window at which its document begins. A token attends to no token before that.
inline constexpr char kDocumentStartField[] = "document_start";
inline constexpr char kPositionsField[] = "positions";  // of each token in its document, within the window

/// How documents become windows.
///   pack: the documents follow each other as one stream, which is cut into windows. The rest of the stream that does
///     not fill a window is left out. Predictions, attention (document_start) and positions do not cross documents,
///     unless cross_documents is set, which makes each window one piece of text.
///   no pack: each window is one document, truncated to T tokens or padded (token 0, target -1). Documents of less than
///     2 tokens, which have nothing to predict, are left out.
/// For conversations, only the tokens of answers are predicted, and no conversation is cut at the end of a window: with
/// pack, a window has the whole conversations that WindowPacking puts there, and padding. Those that are longer than
/// T tokens are truncated, and those whose first T tokens have nothing to predict are left out. cross_documents is not
/// possible.
struct TextWindows {
  int sequence_length = 0;  // T, at least 2
  bool pack = true;
  bool cross_documents = false;  // with pack only
};

class TextSet : public Dataset {
 public:
  const TextSetInfo& info() const override = 0;
  std::string sample_word() const final { return "windows"; }
  /// Tokens, targets, document starts and positions, in this order.
  std::vector<Field> fields() const final;
};

/// Opens and checks a file: every size against the file's length, and every position of a document. [first_document,
/// end_document) is a range of its documents; end_document 0: up to the last. Ids are checked when they are read: an
/// id outside of the vocabulary throws data_damaged.
std::unique_ptr<TextSet> open_text_set(const std::string& path, std::int64_t first_document, std::int64_t end_document,
                                       const TextWindows& windows);

/// Windows of uniformly distributed tokens from Philox(seed, synthetic, sample), without a file; each is one document.
/// `split` ("train", "val") selects other tokens. Sample 0 of the set is number `first_sample` of all.
std::unique_ptr<TextSet> make_synthetic_text(std::uint32_t seed, std::int64_t n_samples, int sequence_length,
                                             int vocabulary_size, const std::string& split = "train",
                                             std::int64_t first_sample = 0);

inline constexpr std::size_t kOpenWindows = 64;

/// Packs whole documents into windows: first fit, in the order of the documents. Each document is put into the oldest
/// open window in which it has room. If there is none, a new window is opened, and the oldest is closed if more than
/// kOpenWindows would be open. The result depends on the lengths and their order only, and windows follow each other in
/// about the order of the documents. The time is proportional to the number of documents.
class WindowPacking {
 public:
  WindowPacking() = default;
  /// Packs documents with these lengths. None of them is longer than a window.
  WindowPacking(std::span<const std::uint32_t> lengths, std::uint32_t window);

  std::size_t n_windows() const { return begins_.empty() ? 0 : begins_.size() - 1; }
  /// The documents of a window, as numbers in `lengths`, ascending.
  std::span<const std::uint32_t> documents(std::size_t window) const {
    return std::span(order_).subspan(begins_[window], begins_[window + 1] - begins_[window]);
  }

 private:
  std::vector<std::uint32_t> order_;  // documents, window after window
  std::vector<std::size_t> begins_;   // of each window in order_, and the end
};

}  // namespace lockstep::data

// The HDF5 file of a text set: writing it, and checking it before a token of it is read. text_set.h documents the
// layout.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "data/file.h"

namespace lockstep::data {

inline constexpr char kTextFormat[] = "lockstep-text";
inline constexpr std::int64_t kTextFormatVersion = 1;
/// The version of a set of conversations, which has answers.
inline constexpr std::int64_t kChatFormatVersion = 2;
/// Tokens are hashed in blocks of this size, so that damage can be located and any number of tokens can be checked.
inline constexpr std::uint64_t kTokenBlockBytes = 16u << 20;
inline constexpr std::uint64_t kMaxTokenizerBytes = 256u << 20;

/// Ids of this many bytes are stored for a vocabulary of this size.
inline int token_bytes_for(int vocabulary_size) { return vocabulary_size <= 65536 ? 2 : 4; }

/// What a text set records about its tokenizer and its origin.
struct TextDescription {
  int vocabulary_size = 0;
  std::string tokenizer_hash;
  std::optional<std::int32_t> end_token;  // ends each document; empty: documents follow each other directly
  std::string source;                     // where the text was imported from; may be empty
  // For conversations: the template that rendered them, where it came from, and the texts of bos_token, eos_token and
  // so on that it may use.
  std::string chat_template{}, chat_template_source{};
  std::map<std::string, std::string> special_tokens{};
  bool operator==(const TextDescription&) const = default;
};

/// Tokens from `begin` to `end` - 1 of /tokens.
struct TokenRange {
  std::uint64_t begin = 0, end = 0;
  bool operator==(const TokenRange&) const = default;
};

/// The result of open_text_file(): all sizes agree with each other, and everything is inside the file.
struct TextFile {
  TextDescription description;
  std::int64_t n_documents = 0, n_tokens = 0;
  std::int64_t n_answers = 0;  // 0: text, of which every token counts
  int token_bytes = 0;         // 2 or 4
  ByteRange tokens, documents, tokenizer;
  ByteRange answers;                         // empty: text
  ByteRange block_hashes;                    // /tokens_xxh3; empty: the file has none
  std::string documents_xxh3, answers_xxh3;  // 16 hex digits; empty: the file has none
  bool has_user_block = false;
  bool has_answers() const { return n_answers > 0; }
  bool operator==(const TextFile&) const = default;
};

/// Whether the file is a text set, whether it is damaged or not. Files of other programs are opened in a limited child
/// process.
bool is_text_file(const InputFile& file);

/// Throws an Error (data_*) that describes what is wrong. HDF5 opens the file only in a limited child process.
TextFile open_text_file(const InputFile& file);

/// DatasetInfo::content_hash of the file.
std::string content_hash(const InputFile& file, const TextFile& layout);

/// Throws data_format unless the positions in /documents ascend from 0 to n_tokens. Returns the tokens of the longest
/// document. Memory does not depend on the number of documents.
std::int64_t check_documents(const InputFile& file, const TextFile& layout);
/// `n` positions of /documents from number `first` on.
std::vector<std::uint64_t> read_documents(const InputFile& file, const TextFile& layout, std::int64_t first,
                                          std::int64_t n);
/// Throws data_format unless the answers ascend and each is a part of one document. Memory does not depend on their
/// number. The documents must have been checked.
void check_answers(const InputFile& file, const TextFile& layout);
/// The answers that begin in `tokens`.
std::vector<TokenRange> read_answers(const InputFile& file, const TextFile& layout, const TokenRange& tokens);
/// The content of tokenizer.json.
std::string read_tokenizer(const InputFile& file, const TextFile& layout);

/// Recomputes the checksums and checks every id and every position.
Verification verify_text_file(const InputFile& file, const TextFile& layout,
                              const std::function<void(std::uint64_t bytes)>& progress);

/// Writes a text set under a partial name; finish() renames the file. Equal content results in equal bytes. The number
/// of tokens is not known in advance, so tokens and positions are first collected in files without a name in the folder
/// of the output, which needs space for both. Memory does not depend on the number of tokens.
class TextFileWriter {
 public:
  TextFileWriter(const std::string& path, bool replace, int vocabulary_size);
  ~TextFileWriter();

  /// Adds tokens to the current document. Throws data_source for an id outside of the vocabulary.
  void append(std::span<const std::int32_t> tokens);
  /// Tokens [begin, end) of the current document, counted from its first, are an answer: they count towards the loss.
  /// The answers of a document are added in order, after its tokens.
  void add_answer(std::int64_t begin, std::int64_t end);
  /// Each document has at least one token.
  void end_document();
  std::int64_t n_documents() const;
  std::int64_t n_tokens() const;
  /// Throws data_source if there are no tokens. `tokenizer_json`: the content of the file.
  void finish(const TextDescription& description, const std::string& tokenizer_json);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace lockstep::data

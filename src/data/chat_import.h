// Imports conversations: each is rendered with a chat template, tokenised, and stored as a document of a text set with
// the positions of its answers (text_file.h). Several threads work; the order is that of the source. Memory is bounded
// for JSON Lines.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "data/text_import.h"
#include "text/chat_template.h"
#include "text/conversation_encoder.h"

namespace lockstep::data {

struct ChatRecord {
  TextDocument line;                // of JSON, or a row of a table; of an array, `line` is the element from 0 on
  nlohmann::ordered_json object{};  // of an array
  std::uint64_t n_bytes = 0;        // of the file
};

/// Reads conversations one after the other: the lines of JSON Lines, the elements of one JSON array, the rows of
/// tables, the members *.json of archives, or those of a folder of such files (source_files.h). Each is an object with
/// one of
///
/// - "messages" or "conversations", a list of {"role", "content"}, or of ShareGPT's {"from", "value"};
/// - Alpaca's "instruction", "input" (may be missing) and "output", and possibly "system";
/// - "prompt" and "completion", each a text or a list of messages.
///
/// Templates get all fields of messages, and "tools" of the object, as from transformers.
class ChatSource {
 public:
  /// `field`: the list of messages, instead of those above; `output`: TextSourceOptions. Throws data_source if a file
  /// is missing or cannot be read, and if it is an array that is not valid JSON.
  explicit ChatSource(const std::string& path, const std::string& split = "", std::string field = "",
                      std::uint64_t max_line_bytes = kMaxDocumentBytes, const std::string& output = "");

  const std::vector<std::string>& paths() const { return lines_.paths(); }
  /// Its name, without folders, and the split, if there was a choice.
  const std::string& description() const { return lines_.description(); }
  std::int64_t total_bytes() const { return lines_.total_bytes(); }
  std::uint64_t done_bytes() const;
  /// Returns false at the end.
  bool next(ChatRecord& record);
  /// "FILE:12", "FILE, row 11" or "FILE, element 11"
  std::string place_of(const ChatRecord& record) const;
  /// Throws data_source, with the place, unless the record has messages with known roles. Thread-safe.
  text::Chat chat_of(const ChatRecord& record) const;

 private:
  void read_array();

  std::string path_, field_;
  TextSource lines_;
  bool is_array_ = false;
  nlohmann::ordered_json array_;
  std::size_t next_ = 0;  // element of the array
};

/// What the import needs of a tokenizer and a template.
struct ChatEncoder {
  /// Called by several threads at once.
  std::function<text::EncodedConversation(const text::Chat&)> encode;
  TextDescription description;  // of the output, but for `source`
  std::string tokenizer_path, tokenizer_json;
  std::optional<std::int32_t> answer_end{};  // answer_end.h
};

/// What to do with a conversation that has more than max_tokens tokens.
enum class TooLong : std::uint8_t { truncate, drop };

struct ChatImportOptions {
  std::string source{}, output{};
  std::string split{}, field{};  // ChatSource
  std::int64_t start = 0;        // the first conversation
  std::int64_t end = 0;          // the conversation after the last; 0: all
  // Among those from start to end, only conversations whose random number is in [from, to) are imported. It is a
  // function of the seed and the number of the conversation, so [0, a) and [a, 1) together select each conversation
  // once.
  double from = 0, to = 1;
  std::uint32_t seed = 1;
  std::int64_t max_tokens = 0;  // of a conversation; 0: any number
  TooLong too_long = TooLong::truncate;
  bool replace = false;                              // replace an existing output
  std::uint64_t max_line_bytes = kMaxDocumentBytes;  // of JSON Lines
  int threads = 0;                                   // 0: as many as cores
};

struct ChatImportResult {
  std::int64_t n_conversations = 0, n_tokens = 0, n_answers = 0, n_answer_tokens = 0;
  std::int64_t n_ended = 0;      // answers with their end token
  std::int64_t n_truncated = 0;  // of those that were imported
  // Conversations that were left out
  std::int64_t n_without_assistant = 0;
  std::int64_t n_untrained = 0;       // all answers are empty or do not count towards the loss
  std::int64_t n_too_long = 0;        // TooLong::drop
  std::int64_t n_answer_cut_off = 0;  // truncated before their first answer
  std::uint64_t source_bytes = 0, size_bytes = 0;
  std::int64_t n_left_out() const { return n_without_assistant + n_untrained + n_too_long + n_answer_cut_off; }
};

/// `progress` counts bytes of the source. It is called between conversations and may throw, which ends the import.
/// Throws data_source for conversations that cannot be imported, with file and line, and if none is left.
ChatImportResult import_chat(const ChatImportOptions& options, const ChatEncoder& encoder,
                             const ImportProgress& progress = {});

}  // namespace lockstep::data

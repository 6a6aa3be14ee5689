// Imports conversations: each is rendered with a chat template, tokenised, and stored as a document of a text set with
// the positions of its answers (text_file.h). Several threads work; the order is that of the source. Memory is bounded
// for JSON Lines.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>

#include "data/import.h"
#include "data/text_file.h"
#include "data/text_source.h"
#include "text/conversation_encoder.h"

namespace lockstep::data {

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
  std::int64_t start = 0;  // the first conversation
  std::int64_t end = 0;    // the conversation after the last; 0: all
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

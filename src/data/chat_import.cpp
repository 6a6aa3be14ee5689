#include "data/chat_import.h"

#include <algorithm>
#include <memory>
#include <vector>

#include "base/input_check.h"
#include "data/batches.h"
#include "data/chat_source.h"
#include "data/text_file.h"
#include "lockstep/error.h"
#include "lockstep/philox.h"

namespace lockstep::data {
namespace {

struct Batch {
  std::vector<ChatRecord> records;
  std::size_t n_bytes = 0;
  std::vector<text::EncodedConversation> encoded;
};

bool has_assistant(const std::vector<text::ChatMessage>& messages) {
  return std::ranges::any_of(messages, [](const text::ChatMessage& message) { return message.role == "assistant"; });
}

class ChatImport {
 public:
  ChatImport(const ChatImportOptions& options, const ChatEncoder& encoder, const ImportProgress& progress)
      : options_(options),
        encoder_(encoder),
        progress_(progress),
        source_(options.source, options.max_line_bytes),
        writer_(checked_output(), options.replace, encoder.description.vocabulary_size) {}

  ChatImportResult run() {
    process_batches<Batch>(
        options_.threads, [&] { return next_batch(); }, [&](Batch& batch) { encode(batch); },
        [&](const Batch& batch) { write(batch); });
    check_range();
    require(
        writer_.n_documents() > 0, ErrorCode::data_source,
        "{} is not written: none of the {} conversations has an answer that can be learnt ({} without an assistant, "
        "{} whose answers all have weight 0 or are empty, {} too long)",
        options_.output, n_selected_, result_.n_without_assistant, result_.n_untrained,
        result_.n_too_long + result_.n_answer_cut_off);
    TextDescription description = encoder_.description;
    description.source = description_of_source();
    writer_.finish(description, encoder_.tokenizer_json);
    result_.n_conversations = writer_.n_documents();
    result_.n_tokens = writer_.n_tokens();
    result_.size_bytes = InputFile(options_.output).size_bytes();
    return result_;
  }

 private:
  /// The path of the output. Throws if it is one of the inputs.
  const std::string& checked_output() const {
    const std::vector<std::string> inputs{options_.source, encoder_.tokenizer_path};
    require_no_input(options_.output, inputs);
    return options_.output;
  }

  bool is_selected(std::int64_t number) const {
    if (number < options_.start) return false;
    if (options_.from <= 0 && options_.to >= 1) return true;
    const Philox random(options_.seed, RandomPurpose::shuffle, static_cast<std::uint32_t>(number),
                        name_hash("fraction"));
    const double value = static_cast<double>(random.block(0)[0]) / 4294967296.0;  // in [0, 1)
    return value >= options_.from && value < options_.to;
  }

  /// Returns null at the end.
  std::unique_ptr<Batch> next_batch() {
    auto batch = std::make_unique<Batch>();
    while (batch->n_bytes < kBatchBytes && (options_.end == 0 || n_read_ < options_.end)) {
      ChatRecord record;
      if (!source_.next(record)) break;
      if (progress_) progress_(static_cast<std::int64_t>(source_.done_bytes()), source_.total_bytes());
      if (!is_selected(n_read_++)) continue;
      ++n_selected_;
      batch->n_bytes += record.n_bytes;
      batch->records.push_back(std::move(record));
    }
    return batch->records.empty() ? nullptr : std::move(batch);
  }

  void encode(Batch& batch) const {
    for (ChatRecord& record : batch.records) {
      const text::Chat chat = source_.chat_of(record);
      text::EncodedConversation& encoded = batch.encoded.emplace_back();
      if (!has_assistant(chat.messages)) continue;
      try {
        encoded = encoder_.encode(chat);
      } catch (const Error& error) {
        fail(error.code(), "{}: {}", source_.place_of(record), error.what());
      }
    }
    batch.records.clear();
  }

  void write(const Batch& batch) {
    result_.source_bytes += batch.n_bytes;
    for (const text::EncodedConversation& encoded : batch.encoded) write(encoded);
  }

  void write(const text::EncodedConversation& encoded) {
    if (encoded.answers.empty()) {
      ++(encoded.ids.empty() ? result_.n_without_assistant : result_.n_untrained);
      return;
    }
    const auto most = options_.max_tokens > 0 ? static_cast<std::size_t>(options_.max_tokens) : encoded.ids.size();
    const bool is_too_long = encoded.ids.size() > most;
    if (is_too_long && options_.too_long == TooLong::drop) {
      ++result_.n_too_long;
      return;
    }
    if (encoded.answers.front().first >= most) {
      ++result_.n_answer_cut_off;
      return;
    }
    result_.n_truncated += is_too_long ? 1 : 0;
    writer_.append(std::span(encoded.ids).first(std::min(most, encoded.ids.size())));
    for (const auto& [begin, end] : encoded.answers) {
      if (begin >= most) break;
      const std::size_t last = std::min(end, most);
      writer_.add_answer(static_cast<std::int64_t>(begin), static_cast<std::int64_t>(last));
      ++result_.n_answers;
      result_.n_answer_tokens += static_cast<std::int64_t>(last - begin);
      const auto tokens = std::span(encoded.ids).subspan(begin, last - begin);
      if (encoder_.answer_end && std::ranges::find(tokens, *encoder_.answer_end) != tokens.end()) ++result_.n_ended;
    }
    writer_.end_document();
  }

  void check_range() const {
    require(n_read_ > 0, ErrorCode::data_source, "{} contains no conversations", options_.source);
    require(options_.start < n_read_ && options_.end <= n_read_, ErrorCode::data_range,
            "--start {}{} is not a range of the {} conversations of {}", options_.start,
            options_.end > 0 ? fmt::format(" --end {}", options_.end) : "", n_read_, options_.source);
    require(n_selected_ > 0, ErrorCode::data_range,
            "--fraction {}:{} selects none of the {} conversations of {}: choose a greater one", options_.from,
            options_.to, n_read_ - options_.start, options_.source);
  }

  std::string description_of_source() const {
    std::string text = source_.description();
    if (options_.start > 0 || options_.end > 0)
      text += fmt::format("; conversations {} to {}", options_.start, n_read_ - 1);
    if (options_.from > 0 || options_.to < 1)
      text += fmt::format("; fraction {}:{} of seed {}", options_.from, options_.to, options_.seed);
    return text;
  }

  const ChatImportOptions& options_;
  const ChatEncoder& encoder_;
  const ImportProgress& progress_;
  ChatSource source_;
  TextFileWriter writer_;
  ChatImportResult result_;
  std::int64_t n_read_ = 0, n_selected_ = 0;  // conversations
};

}  // namespace

ChatImportResult import_chat(const ChatImportOptions& options, const ChatEncoder& encoder,
                             const ImportProgress& progress) {
  require(options.end == 0 || options.start < options.end, ErrorCode::data_range,
          "--start {} --end {}: the first conversation must be before the end", options.start, options.end);
  require(options.from >= 0 && options.from < options.to && options.to <= 1, ErrorCode::data_range,
          "--fraction {}:{} is not a part of the numbers from 0 to 1", options.from, options.to);
  return ChatImport(options, encoder, progress).run();
}

}  // namespace lockstep::data

#include "data/chat_import.h"

#include <fmt/ranges.h>
#include <algorithm>
#include <array>
#include <filesystem>
#include <string_view>

#include "base/file.h"
#include "base/model_files.h"
#include "data/batches.h"
#include "lockstep/error.h"
#include "lockstep/philox.h"

namespace lockstep::data {
namespace {

using Json = nlohmann::ordered_json;  // templates may print objects

constexpr int kMaxDepth = 100;
constexpr std::size_t kMaxMembers = 1000;  // of an object; reading them in order takes quadratic time
constexpr std::array<std::string_view, 7> kRoles{"system", "developer", "user",   "assistant",
                                                 "tool",   "function",  "ipython"};

bool is_simple(const nlohmann::json& value, int depth) {
  if (!value.is_structured()) return true;
  return depth > 0 && (value.is_array() || value.size() <= kMaxMembers) &&
         std::ranges::all_of(value, [&](const nlohmann::json& item) { return is_simple(item, depth - 1); });
}

/// Throws nlohmann's exceptions.
Json parse(const std::string& text, const std::string& place) {
  require(is_simple(parse_stoppable<nlohmann::json>(text), kMaxDepth), ErrorCode::data_source,
          "{}: it is nested more than {} deep, or an object has more than {} members", place, kMaxDepth, kMaxMembers);
  return parse_stoppable<Json>(text);
}

/// Whether the first character other than white space begins an array.
bool begins_array(const InputFile& file) {
  std::array<std::byte, 4096> head{};
  const auto part = std::span(head).first(std::min<std::uint64_t>(head.size(), file.size_bytes()));
  file.read(0, part, "its first bytes");
  std::string_view text(reinterpret_cast<const char*>(part.data()), part.size());
  if (text.starts_with("\xef\xbb\xbf")) text.remove_prefix(3);
  const std::size_t first = text.find_first_not_of(" \t\r\n");
  return first != std::string_view::npos && text[first] == '[';
}

/// The text of a field. It is empty if the field is missing or null, where that is allowed.
std::string text_field(const Json& object, const char* name, const std::string& where, bool may_be_missing = false) {
  const auto found = object.find(name);
  if (may_be_missing && (found == object.end() || found->is_null())) return {};
  require(found != object.end(), ErrorCode::data_source, "{} has no \"{}\"", where, name);
  require(found->is_string(), ErrorCode::data_source, "{}: \"{}\": expected a string, found a JSON {}{}", where, name,
          found->type_name(), found->is_array() ? ": join the texts of its parts" : "");
  return found->get<std::string>();
}

/// Whether the turn counts towards the loss: "train": false and "weight": 0 leave it out.
bool is_trained(const Json& message, const std::string& where) {
  bool trained = true;
  for (const char* name : {"train", "weight"}) {
    const Json value = message.value(name, Json());
    const bool is_off = value == false || value == 0;
    require(
        value.is_null() || is_off || ((value == true || value == 1) && message["role"] == "assistant"),
        ErrorCode::data_source,
        "{}: \"{}\": {}: expected false or 0, which leave an answer out of the loss, or for a turn of the assistant "
        "true or 1: other turns are never trained",
        where, name, value.dump());
    trained = trained && !is_off;
  }
  return trained;
}

/// Throws unless the field is missing, null or a list of objects.
void require_objects(const Json& of, const char* name, const std::string& where) {
  const Json value = of.value(name, Json());
  require(value.is_null() || (value.is_array() && std::ranges::all_of(value, &Json::is_object)), ErrorCode::data_source,
          "{}: \"{}\": expected a list of JSON objects, found {}", where, name, value.dump().substr(0, 60));
}

/// A message of ShareGPT, {"from", "value"}, as {"role", "content"}; others as they are.
Json with_role(const Json& message) {
  if (!message.is_object() || message.contains("role") || !message.contains("from")) return message;
  constexpr std::array<std::pair<std::string_view, std::string_view>, 3> kNames{
      {{"human", "user"}, {"gpt", "assistant"}, {"observation", "tool"}}};
  Json out = Json::object();
  for (const auto& [key, value] : message.items()) {
    Json& target = out[key == "from" ? "role" : key == "value" ? "content" : key];
    target = value;
    const auto name = std::ranges::find_if(kNames, [&](const auto& names) { return value == names.first; });
    if (key == "from" && name != kNames.end()) target = name->second;
  }
  return out;
}

std::vector<text::ChatMessage> list_of_messages(const Json& list, const char* name, const std::string& place) {
  require(list.is_array(), ErrorCode::data_source, "{}: \"{}\": expected a list, found a JSON {}", place, name,
          list.type_name());
  require(!list.empty(), ErrorCode::data_source, "{}: the conversation is empty: remove it, or give it messages",
          place);
  std::vector<text::ChatMessage> out;
  for (const Json& given : list) {
    const Json message = with_role(given);
    const std::string where = fmt::format("{}: message {}", place, out.size() + 1);
    require(message.is_object(), ErrorCode::data_source, "{}: expected {{\"role\", \"content\"}}, found a JSON {}",
            where, message.type_name());
    const std::string role = text_field(message, "role", where);
    require(std::ranges::find(kRoles, role) != kRoles.end(), ErrorCode::data_source,
            "{} has the role \"{}\", which is not known: rename it to one of {}, or remove the conversation", where,
            role, fmt::join(kRoles, ", "));
    require_objects(message, "tool_calls", where);
    Json fields = text::message_fields(message);
    out.push_back({.role = role,
                   .content = text_field(message, "content", where, fields.contains("tool_calls")),
                   .fields = std::move(fields),
                   .is_trained = is_trained(message, where)});
  }
  return out;
}

/// One question and one answer.
std::vector<text::ChatMessage> alpaca_messages(const Json& object, const std::string& place) {
  const std::string where = place + ": the object";
  const std::string system = text_field(object, "system", where, true);
  std::string question = text_field(object, "instruction", where);
  const std::string input = text_field(object, "input", where, true), answer = text_field(object, "output", where);
  require(!question.empty() || !input.empty() || !answer.empty(), ErrorCode::data_source,
          "{}: the conversation is empty: remove it, or give it an instruction and an output", place);
  const auto history = object.find("history");
  require(history == object.end() || history->empty() || *history == "", ErrorCode::data_source,
          "{} has a \"history\", which is not supported: convert the conversation to \"messages\"", where);
  if (!input.empty()) question += (question.empty() ? "" : "\n\n") + input;
  std::vector<text::ChatMessage> out;
  if (!system.empty()) out.push_back({"system", system});
  out.push_back({"user", std::move(question)});
  out.push_back({"assistant", answer});
  return out;
}

/// Each is a text or a list of messages.
std::vector<text::ChatMessage> prompt_messages(const Json& object, const std::string& place) {
  std::vector<text::ChatMessage> out;
  for (const auto& [name, role] : {std::pair{"prompt", "user"}, std::pair{"completion", "assistant"}}) {
    if (object.at(name).is_array())
      std::ranges::move(list_of_messages(object.at(name), name, place), std::back_inserter(out));
    else
      out.push_back({role, text_field(object, name, place + ": the object")});
  }
  return out;
}

/// "\"a\", \"b\"", or "nothing"
std::string names_of(const Json& object) {
  std::vector<std::string> names;
  for (const auto& field : object.items()) names.push_back(field.key());
  return names.empty() ? "nothing" : fmt::format("\"{}\"", fmt::join(names, "\", \""));
}

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
  ChatImport(const ChatImportOptions& options, const ChatEncoder& encoder, const ImportProgress& progress,
             ChatSource source)
      : options_(options),
        encoder_(encoder),
        progress_(progress),
        source_(std::move(source)),
        writer_(options.output, options.replace, encoder.description.vocabulary_size) {}

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

ChatSource::ChatSource(const std::string& path, const std::string& split, std::string field,
                       std::uint64_t max_line_bytes, const std::string& output)
    : path_(path),
      field_(std::move(field)),
      lines_({path},
             {.format = SourceFormat::json_lines, .split = split, .max_line_bytes = max_line_bytes, .output = output}) {
  is_array_ = !is_folder(path) && begins_array(InputFile(path));
  if (is_array_) read_array();
}

void ChatSource::read_array() {
  const InputFile file(path_);
  require(file.size_bytes() <= kMaxDocumentBytes, ErrorCode::data_source,
          "{} is a JSON array of {} bytes, which can have at most {}: convert it to JSON Lines, with one conversation "
          "per line (`jq -c '.[]'`)",
          path_, file.size_bytes(), kMaxDocumentBytes);
  std::string text(file.size_bytes(), '\0');
  file.read(0, std::as_writable_bytes(std::span(text)), "the conversations");
  try {
    array_ = parse(text, path_);
  } catch (const Json::exception& error) {
    const std::string_view what = error.what();
    const std::size_t line = what.find("line ");
    fail(ErrorCode::data_source, "{} is not valid JSON ({})", path_, line == what.npos ? what : what.substr(line));
  }
}

std::uint64_t ChatSource::done_bytes() const {
  if (!is_array_) return lines_.done_bytes();
  return array_.empty() ? 0 : static_cast<std::uint64_t>(total_bytes()) * next_ / array_.size();
}

bool ChatSource::next(ChatRecord& record) {
  record = {};
  if (is_array_) {
    if (next_ == array_.size()) return false;
    record.line.line = static_cast<std::int64_t>(next_);
    record.n_bytes = static_cast<std::uint64_t>(total_bytes()) / array_.size();
    record.object = std::move(array_[next_++]);
    return true;
  }
  if (!lines_.next(record.line)) return false;
  record.n_bytes = record.line.text.size();
  return true;
}

std::string ChatSource::place_of(const ChatRecord& record) const {
  return is_array_ ? fmt::format("{}, element {}", path_, record.line.line) : record.line.place();
}

text::Chat ChatSource::chat_of(const ChatRecord& record) const {
  const std::string place = place_of(record);
  Json parsed;
  if (!is_array_)
    parsed = parse_line(record.line.text, place, "expected one conversation per line, or one JSON array of them",
                        [&] { return parse(record.line.text, place); });
  const Json& object = is_array_ ? record.object : parsed;
  require(object.is_object(), ErrorCode::data_source,
          "{}: expected an object with \"messages\", or with \"instruction\" and \"output\", found the type {}", place,
          object.type_name());
  require_objects(object, "tools", place);
  Json variables{{"tools", object.value("tools", Json())}};
  const auto has = [&](const char* name) { return object.contains(name) && !object.at(name).is_null(); };
  if (!field_.empty()) {
    const Json* list = find_field(object, field_);
    require(list != nullptr, ErrorCode::data_source, "{}: the object has no field \"{}\", but {}: choose with --field",
            place, field_, names_of(object));
    return {list_of_messages(*list, field_.c_str(), place), std::move(variables)};
  }
  for (const char* name : {"messages", "conversations"})
    if (has(name)) return {list_of_messages(object.at(name), name, place), std::move(variables)};
  if (object.contains("instruction") || object.contains("output"))
    return {alpaca_messages(object, place), std::move(variables)};
  if (has("prompt") && has("completion")) return {prompt_messages(object, place), std::move(variables)};
  require(
      !object.contains("chosen") || !object.contains("rejected"), ErrorCode::data_source,
      "{}: this is a pair of a chosen and a rejected answer, as for DPO, which Lockstep does not train: to train on "
      "the chosen answers, convert each pair to \"messages\" with the prompt and \"chosen\"",
      place);
  fail(ErrorCode::data_source,
       "{}: the object has neither \"messages\" or \"conversations\", nor \"instruction\" and \"output\", nor "
       "\"prompt\" and \"completion\", but {}: name a list of messages with --field, or convert it to "
       R"({{"messages": [{{"role": "user", "content": "..."}}, {{"role": "assistant", "content": "..."}}]}})",
       place, names_of(object));
}

ChatImportResult import_chat(const ChatImportOptions& options, const ChatEncoder& encoder,
                             const ImportProgress& progress) {
  require(options.end == 0 || options.start < options.end, ErrorCode::data_range,
          "--start {} --end {}: the first conversation must be before the end", options.start, options.end);
  require(options.from >= 0 && options.from < options.to && options.to <= 1, ErrorCode::data_range,
          "--fraction {}:{} is not a part of the numbers from 0 to 1", options.from, options.to);
  ChatSource source(options.source, options.split, options.field, options.max_line_bytes, options.output);
  require_no_input(options.output, source.paths());
  require_no_input(options.output, std::vector{encoder.tokenizer_path});
  return ChatImport(options, encoder, progress, std::move(source)).run();
}

}  // namespace lockstep::data

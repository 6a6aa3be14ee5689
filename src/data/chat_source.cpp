#include "data/chat_source.h"

#include <fmt/ranges.h>

#include <array>
#include <filesystem>
#include <string_view>

#include "data/text_import.h"
#include "lockstep/error.h"

namespace lockstep::data {
namespace {

using Json = nlohmann::json;

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

const std::string& not_a_folder(const std::string& path) {
  std::error_code ignored;
  require(!std::filesystem::is_directory(path, ignored), ErrorCode::data_source,
          "{} is a folder; expected a file with one conversation per line, or with one JSON array of them", path);
  return path;
}

/// The part "column 5: syntax error ..." of an exception's message
std::string_view what_of(const Json::exception& error, std::string_view from) {
  const std::string_view what = error.what();
  const std::size_t found = what.find(from);
  return found == std::string_view::npos ? what : what.substr(found);
}

/// The text of a field. It is empty if the field is missing or null, where that is allowed.
std::string text_field(const Json& object, const char* name, const std::string& where, bool may_be_missing = false) {
  const auto found = object.find(name);
  if (may_be_missing && (found == object.end() || found->is_null())) return {};
  require(found != object.end(), ErrorCode::data_source, "{} has no \"{}\"", where, name);
  require(found->is_string(), ErrorCode::data_source, "{}: \"{}\": expected a string, found a JSON {}", where, name,
          found->type_name());
  return found->get<std::string>();
}

std::vector<text::ChatMessage> list_of_messages(const Json& list, const std::string& place) {
  require(list.is_array(), ErrorCode::data_source, "{}: \"messages\": expected a list, found a JSON {}", place,
          list.type_name());
  require(!list.empty(), ErrorCode::data_source, "{}: the conversation is empty: remove it, or give it messages",
          place);
  std::vector<text::ChatMessage> out;
  for (const Json& message : list) {
    const std::string where = fmt::format("{}: message {}", place, out.size() + 1);
    require(message.is_object(), ErrorCode::data_source, "{}: expected {{\"role\", \"content\"}}, found a JSON {}",
            where, message.type_name());
    const std::string role = text_field(message, "role", where);
    require(role == "system" || role == "user" || role == "assistant", ErrorCode::data_source,
            "{} has the role \"{}\", which is not known: rename it to system, user or assistant, or remove the "
            "conversation",
            where, role);
    out.push_back({role, text_field(message, "content", where)});
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
  if (!input.empty()) question += (question.empty() ? "" : "\n\n") + input;
  std::vector<text::ChatMessage> out;
  if (!system.empty()) out.push_back({"system", system});
  out.push_back({"user", std::move(question)});
  out.push_back({"assistant", answer});
  return out;
}

}  // namespace

ChatSource::ChatSource(const std::string& path) : path_(not_a_folder(path)), lines_({path}, SourceFormat::json_lines) {
  const InputFile file(path);
  is_array_ = begins_array(file);
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
    array_ = Json::parse(text);
  } catch (const Json::exception& error) {
    fail(ErrorCode::data_source, "{} is not valid JSON ({})", path_, what_of(error, "line "));
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
    record.number = static_cast<std::int64_t>(next_);
    record.n_bytes = static_cast<std::uint64_t>(total_bytes()) / array_.size();
    record.object = std::move(array_[next_++]);
    return true;
  }
  TextDocument line;
  if (!lines_.next(line)) return false;
  record.n_bytes = line.text.size();
  record.line = std::move(line.text);
  record.number = line.line;
  return true;
}

std::string ChatSource::place_of(const ChatRecord& record) const {
  return fmt::format(fmt::runtime(is_array_ ? "{}, element {}" : "{}:{}"), path_, record.number);
}

std::vector<text::ChatMessage> ChatSource::messages_of(const ChatRecord& record) const {
  const std::string place = place_of(record);
  Json parsed;
  if (!is_array_) {
    const std::size_t zero = record.line.find('\0');  // where the parser would stop
    require(zero == std::string::npos, ErrorCode::data_source, "{}: this line is not valid JSON: its byte {} is 0",
            place, zero);
    try {
      parsed = Json::parse(record.line);
    } catch (const Json::exception& error) {
      fail(ErrorCode::data_source,
           "{}: this line is not valid JSON ({}); expected one conversation per line, or one JSON array of them", place,
           what_of(error, "column "));
    }
  }
  const Json& object = is_array_ ? record.object : parsed;
  require(object.is_object(), ErrorCode::data_source,
          "{}: expected an object with \"messages\", or with \"instruction\" and \"output\", found the type {}", place,
          object.type_name());
  if (const auto list = object.find("messages"); list != object.end()) return list_of_messages(*list, place);
  if (object.contains("instruction") || object.contains("output")) return alpaca_messages(object, place);
  std::vector<std::string> names;
  for (const auto& field : object.items()) names.push_back(field.key());
  fail(ErrorCode::data_source,
       "{}: the object has neither \"messages\" nor \"instruction\" and \"output\", but {}: rename its fields", place,
       names.empty() ? "nothing" : fmt::format("\"{}\"", fmt::join(names, "\", \"")));
}

}  // namespace lockstep::data

// Reads the conversations of a file one after the other. The file has one JSON object per line, or is one JSON array of
// them. An object has the field "messages", a list of {"role", "content"}, or the fields of Alpaca: "instruction",
// "input" (may be missing) and "output", and possibly "system". Templates get all fields of messages, and "tools" of
// the object, as from transformers.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "data/text_source.h"
#include "text/chat_template.h"

namespace lockstep::data {

struct ChatRecord {
  std::string line;                 // of a file of lines; otherwise empty
  nlohmann::ordered_json object{};  // of an array
  std::int64_t number = 0;          // the line, or the element of the array from 0 on
  std::uint64_t n_bytes = 0;        // of the file
};

class ChatSource {
 public:
  /// Throws data_source if the file is missing or cannot be read, and if it is an array that is not valid JSON.
  explicit ChatSource(const std::string& path, std::uint64_t max_line_bytes = kMaxDocumentBytes);

  const std::string& path() const { return path_; }
  /// Its name, without folders.
  const std::string& description() const { return lines_.description(); }
  std::int64_t total_bytes() const { return lines_.total_bytes(); }
  std::uint64_t done_bytes() const;
  /// Returns false at the end.
  bool next(ChatRecord& record);
  /// "FILE:12", or "FILE, element 11"
  std::string place_of(const ChatRecord& record) const;
  /// Throws data_source, with the place, unless the record has messages with known roles. Thread-safe.
  text::Chat chat_of(const ChatRecord& record) const;

 private:
  void read_array();

  std::string path_;
  TextSource lines_;
  bool is_array_ = false;
  nlohmann::ordered_json array_;
  std::size_t next_ = 0;  // element of the array
};

}  // namespace lockstep::data

// Parses JSON from untrusted files. nlohmann's parser accepts duplicate keys in an object (the last value wins) and
// anything after a zero byte. Here, both are errors.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "lockstep/error.h"

namespace lockstep {

/// The one value that `text` consists of. Otherwise throws `code` with a sentence that begins with `source` and
/// contains the line and column, or the key that occurs twice.
nlohmann::json parse_json(std::string_view text, const std::string& source, ErrorCode code);

}  // namespace lockstep

/// Lets nlohmann::json read and write optionals: an empty one is null.
template <typename T>
struct nlohmann::adl_serializer<std::optional<T>> {
  static void to_json(nlohmann::json& json, const std::optional<T>& value) {
    if (value)
      json = *value;
    else
      json = nullptr;
  }
  static void from_json(const nlohmann::json& json, std::optional<T>& value) {
    if (json.is_null())
      value.reset();
    else
      value = json.get<T>();
  }
};

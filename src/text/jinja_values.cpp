// Converts the values of a template to text, and implements their filters, tests and methods.
#include <fmt/format.h>

#include <algorithm>
#include <cctype>

#include "lockstep/error.h"
#include "text/jinja.h"
#include "text/utf8.h"

namespace lockstep::text::jinja {
namespace {

/// The characters that Python's str.isspace() accepts.
constexpr std::string_view kWhiteSpace =
    " \t\r\n\f\v\x1c\x1d\x1e\x1f\u0085\u00a0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a"
    "\u2028\u2029\u202f\u205f\u3000";

/// Removes the code points in `characters` from the ends of the text.
std::string stripped(std::string_view text, std::string_view characters, bool left, bool right) {
  const auto is_stripped = [&](std::string_view code_point) { return characters.find(code_point) != text.npos; };
  while (left && !text.empty()) {
    const std::string_view first = text.substr(0, n_bytes_of(text[0]));
    if (!is_stripped(first)) break;
    text.remove_prefix(first.size());
  }
  while (right && !text.empty()) {
    std::size_t begin = text.size() - 1;
    while (begin > 0 && (static_cast<unsigned char>(text[begin]) & 0xc0) == 0x80) --begin;
    if (!is_stripped(text.substr(begin))) break;
    text = text.substr(0, begin);
  }
  return std::string(text);
}

std::string replaced(const std::string& text, const std::string& from, const std::string& to) {
  if (from.empty()) return text;
  std::string out;
  std::size_t begin = 0;
  for (std::size_t at = text.find(from); at != std::string::npos; at = text.find(from, begin)) {
    out += text.substr(begin, at - begin) + to;
    begin = at + from.size();
  }
  return out + text.substr(begin);
}

std::string cased(std::string text, int (*convert)(int)) {
  for (char& c : text)
    if (static_cast<unsigned char>(c) < 0x80) c = static_cast<char>(convert(c));
  return text;
}

std::string capitalized(std::string text, bool each_word) {
  text = cased(std::move(text), std::tolower);
  bool begins = true;
  for (char& c : text) {
    if (begins) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
    begins = each_word && std::isalpha(static_cast<unsigned char>(c)) == 0;
  }
  return text;
}

std::size_t n_characters(const std::string& text) {
  return static_cast<std::size_t>(
      std::ranges::count_if(text, [](char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; }));
}

/// Quotes a string like Python's repr().
std::string quoted(const std::string& text) {
  const char quote = text.find('\'') != std::string::npos && text.find('"') == std::string::npos ? '"' : '\'';
  std::string out(1, quote);
  for (const char c : text) {
    if (c == '\n')
      out += "\\n";
    else if (c == '\\' || c == quote)
      out += std::string("\\") + c;
    else
      out += c;
  }
  return out + quote;
}

std::string repr(const Value& v) { return v.is_string() ? quoted(v.get<std::string>()) : text_of(v); }

Value items_of(const Value& object) {
  Value out = Value::array();
  for (const auto& [key, item] : object.items()) out.push_back(Value::array({key, item}));
  return out;
}

Value joined(const Value& list, const std::string& separator) {
  std::string out;
  bool is_first = true;
  for (const Value& item : list) {
    if (!is_first) out += separator;
    out += text_of(item);
    is_first = false;
  }
  return out;
}

}  // namespace

bool is_true(const Value& v) {
  if (v.is_discarded() || v.is_null()) return false;
  if (v.is_boolean()) return v.get<bool>();
  if (v.is_number()) return v.get<double>() != 0;
  if (v.is_string()) return !v.get_ref<const std::string&>().empty();
  return !v.empty();
}

std::string text_of(const Value& v) {
  if (v.is_discarded()) return "";
  if (v.is_null()) return "None";
  if (v.is_boolean()) return v.get<bool>() ? "True" : "False";
  if (v.is_string()) return v.get<std::string>();
  if (v.is_number_integer()) return std::to_string(v.get<std::int64_t>());
  if (v.is_number()) {
    const std::string text = fmt::format("{}", v.get<double>());
    return text.find_first_of(".en") == std::string::npos ? text + ".0" : text;
  }
  std::string out;
  if (v.is_array())
    for (const Value& item : v) out += (out.empty() ? "" : ", ") + repr(item);
  else
    for (const auto& [key, item] : v.items())
      out += fmt::format("{}{}: {}", out.empty() ? "" : ", ", quoted(key), repr(item));
  return v.is_array() ? "[" + out + "]" : "{" + out + "}";
}

std::string json_of(const Value& v, int indent) {
  if (v.is_discarded()) return "null";
  if (indent >= 0) return v.dump(indent);
  if (!v.is_structured()) return v.dump();
  std::string out;
  if (v.is_array())
    for (const Value& item : v) out += (out.empty() ? "" : ", ") + json_of(item, indent);
  else
    for (const auto& [key, item] : v.items())
      out += fmt::format("{}{}: {}", out.empty() ? "" : ", ", Value(key).dump(), json_of(item, indent));
  return v.is_array() ? "[" + out + "]" : "{" + out + "}";
}

Value Arguments::get(std::size_t place, std::string_view name, Value otherwise) const {
  if (place < positional.size()) return positional[place];
  for (const auto& [given, value] : named)
    if (given == name) return value;
  return otherwise;
}

Value apply_filter(const std::string& name, const Value& v, const Arguments& arguments, const std::string& source) {
  if (name == "trim") return stripped(text_of(v), kWhiteSpace, true, true);
  if (name == "length" || name == "count")
    return v.is_string() ? n_characters(v.get<std::string>()) : v.is_structured() ? v.size() : 0;
  if (name == "upper") return cased(text_of(v), std::toupper);
  if (name == "lower") return cased(text_of(v), std::tolower);
  if (name == "capitalize") return capitalized(text_of(v), false);
  if (name == "title") return capitalized(text_of(v), true);
  if (name == "string") return text_of(v);
  if (name == "safe") return v;
  if (name == "replace")
    return replaced(text_of(v), text_of(arguments.get(0, "old")), text_of(arguments.get(1, "new")));
  if (name == "tojson") {
    const Value indent = arguments.get(0, "indent");
    return json_of(v, indent.is_number_integer() ? indent.get<int>() : -1);
  }
  if (name == "default" || name == "d") {
    const bool is_missing = v.is_discarded() || (is_true(arguments.get(1, "boolean", false)) && !is_true(v));
    return is_missing ? arguments.get(0, "default_value", "") : v;
  }
  if (name == "join" && v.is_array()) return joined(v, text_of(arguments.get(0, "d", "")));
  if (name == "items" && v.is_object()) return items_of(v);
  if (name == "list" && v.is_array()) return v;
  if ((name == "first" || name == "last") && v.is_array())
    return v.empty() ? undefined() : name == "first" ? v.front() : v.back();
  if (name == "int" && v.is_number()) return static_cast<std::int64_t>(v.get<double>());
  fail(ErrorCode::chat_template, "the chat template {}: the filter {} is not supported for this value", source, name);
}

bool apply_test(const std::string& name, const Value& v, const Arguments& arguments, const std::string& source) {
  if (name == "defined") return !v.is_discarded();
  if (name == "undefined") return v.is_discarded();
  if (name == "none") return v.is_null();
  if (name == "string") return v.is_string();
  if (name == "mapping") return v.is_object();
  if (name == "sequence" || name == "iterable") return v.is_array() || v.is_string() || v.is_object();
  if (name == "number") return v.is_number() || v.is_boolean();
  if (name == "integer") return v.is_number_integer();
  if (name == "boolean") return v.is_boolean();
  if (name == "true" || name == "false") return v.is_boolean() && v.get<bool>() == (name == "true");
  if (name == "equalto" || name == "eq") return v == arguments.get(0, "other");
  if ((name == "odd" || name == "even") && v.is_number_integer())
    return (v.get<std::int64_t>() % 2 != 0) == (name == "odd");
  fail(ErrorCode::chat_template, "the chat template {}: the test {} is not supported for this value", source, name);
}

Value call_method(const Value& v, const std::string& name, const Arguments& arguments, const std::string& source) {
  if (v.is_string()) {
    const std::string text = v.get<std::string>(), first = text_of(arguments.get(0, "")), given = first;
    if (name == "strip" || name == "lstrip" || name == "rstrip")
      return stripped(text, arguments.positional.empty() ? kWhiteSpace : std::string_view(given), name != "rstrip",
                      name != "lstrip");
    if (name == "startswith") return text.starts_with(first);
    if (name == "endswith") return text.ends_with(first);
    if (name == "upper") return cased(text, std::toupper);
    if (name == "lower") return cased(text, std::tolower);
    if (name == "title") return capitalized(text, true);
    if (name == "capitalize") return capitalized(text, false);
    if (name == "replace") return replaced(text, first, text_of(arguments.get(1, "")));
    if (name == "find") {
      const std::size_t at = text.find(first);
      return at == std::string::npos ? Value(-1) : Value(n_characters(text.substr(0, at)));
    }
    if (name == "split" && !arguments.positional.empty() && !first.empty()) {
      const Value limit = arguments.get(1, "maxsplit", -1);
      Value out = Value::array();
      std::size_t begin = 0;
      for (std::size_t at = text.find(first); at != std::string::npos; at = text.find(first, begin)) {
        if (limit.is_number_integer() && limit.get<std::int64_t>() == static_cast<std::int64_t>(out.size())) break;
        out.push_back(text.substr(begin, at - begin));
        begin = at + first.size();
      }
      out.push_back(text.substr(begin));
      return out;
    }
  }
  if (v.is_object()) {
    if (name == "items") return items_of(v);
    if (name == "get") {
      const auto found = v.find(text_of(arguments.get(0, "key")));
      return found != v.end() ? *found : arguments.get(1, "default", nullptr);
    }
    if (name == "keys" || name == "values") {
      Value out = Value::array();
      for (const auto& [key, item] : v.items()) out.push_back(name == "keys" ? Value(key) : item);
      return out;
    }
  }
  fail(ErrorCode::chat_template, "the chat template {}: the method {}() is not supported for this value", source, name);
}

}  // namespace lockstep::text::jinja

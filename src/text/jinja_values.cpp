// Converts the values of a template to text, and implements their filters, tests and methods.
#include <fmt/format.h>
#include <utf8proc.h>

#include <algorithm>

#include "base/utf8.h"
#include "lockstep/error.h"
#include "text/jinja.h"

namespace lockstep::text::jinja {
std::string_view stripped(std::string_view text, bool left, bool right, std::string_view characters) {
  const auto is_stripped = [&](std::string_view code_point) { return characters.find(code_point) != text.npos; };
  while (left && !text.empty()) {
    const std::string_view first = text.substr(0, n_bytes_of(text[0]));
    if (!is_stripped(first)) break;
    text.remove_prefix(first.size());
  }
  while (right && !text.empty()) {
    const std::size_t begin = begin_of_last(text, text.size());
    if (!is_stripped(text.substr(begin))) break;
    text = text.substr(0, begin);
  }
  return text;
}

namespace {

/// Appends to a text that a template makes.
void append(std::string& text, std::string_view more, const std::string& source) {
  require(text.size() + more.size() <= kMaxBytes, ErrorCode::chat_template,
          "the chat template {}: a text has more than {} bytes", source, kMaxBytes);
  text += more;
}

std::string replaced(const std::string& text, const std::string& from, const std::string& to,
                     const std::string& source) {
  if (from.empty()) return text;
  std::string out;
  std::size_t begin = 0;
  for (std::size_t at = text.find(from); at != std::string::npos; at = text.find(from, begin)) {
    append(out, std::string_view(text).substr(begin, at - begin), source);
    append(out, to, source);
    begin = at + from.size();
  }
  return out + text.substr(begin);
}

enum class Case : std::uint8_t { lower, upper, title };

bool is_cased(utf8proc_int32_t c) { return utf8proc_isupper(c) != 0 || utf8proc_islower(c) != 0; }

/// Gives the first character, each that follows a character of a word, and each other a case.
std::string cased(const std::string& text, Case first, Case in_word, Case other,
                  bool (*is_of_word)(utf8proc_int32_t) = is_cased) {
  std::string repaired, out;
  bool follows = false, is_first = true;
  for (std::string_view rest = valid_utf8(text, repaired); !rest.empty(); is_first = false) {
    const CodePoint point = code_point_at(rest, 0);
    const auto c = static_cast<utf8proc_int32_t>(point.value);
    const Case to = is_first ? first : follows ? in_word : other;
    append_code_point(out, static_cast<char32_t>(to == Case::lower   ? utf8proc_tolower(c)
                                                 : to == Case::upper ? utf8proc_toupper(c)
                                                                     : utf8proc_totitle(c)));
    follows = is_of_word(c);
    rest.remove_prefix(point.n_bytes);
  }
  return out;
}
std::string lower(const std::string& text) { return cased(text, Case::lower, Case::lower, Case::lower); }
std::string upper(const std::string& text) { return cased(text, Case::upper, Case::upper, Case::upper); }
/// str.title(). Jinja's filter differs: its words end with white space and some signs only.
std::string title(const std::string& text) { return cased(text, Case::title, Case::lower, Case::title); }
std::string title_of_words(const std::string& text) {
  return cased(text, Case::upper, Case::lower, Case::upper, [](utf8proc_int32_t c) {
    return c > 0x7f || std::string_view("- \t\r\n\f\v({[<").find(static_cast<char>(c)) == std::string_view::npos;
  });
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

Value joined(const Value& list, const std::string& separator, const std::string& source) {
  std::string out;
  bool is_first = true;
  for (const Value& item : list) {
    if (!is_first) append(out, separator, source);
    append(out, text_of(item), source);
    is_first = false;
  }
  return out;
}

/// Python's json.dumps(), with the default separators. `indent` below 0: on one line; `depth`: of this value.
void append_json(std::string& out, const Value& v, std::int64_t indent, std::int64_t depth, const std::string& source) {
  if (!v.is_structured() || v.empty()) return append(out, v.is_discarded() ? "null" : v.dump(), source);
  const auto new_line = [&](std::int64_t level) {
    if (indent >= 0) append(out, "\n" + std::string(static_cast<std::size_t>(indent * level), ' '), source);
  };
  append(out, v.is_array() ? "[" : "{", source);
  bool is_first = true;
  for (const auto& [key, item] : v.items()) {
    if (!is_first) append(out, indent < 0 ? ", " : ",", source);
    is_first = false;
    new_line(depth + 1);
    if (v.is_object()) append(out, Value(key).dump() + ": ", source);
    append_json(out, item, indent, depth + 1, source);
  }
  new_line(depth);
  append(out, v.is_array() ? "]" : "}", source);
}

Value json_of(const Value& v, const Arguments& arguments, const std::string& source) {
  const Value indent = arguments.get(1, "indent", -1);
  require(
      indent.is_number_integer() && indent.get<std::int64_t>() <= 100 && arguments.positional.empty() &&
          std::ranges::all_of(arguments.named, [](const auto& a) { return a.first == "indent" || !is_true(a.second); }),
      ErrorCode::chat_template, "the chat template {}: tojson is supported with an indent of at most 100", source);
  std::string out;
  append_json(out, v, indent.get<std::int64_t>(), 0, source);
  return out;
}

}  // namespace

std::string capitalized(const std::string& text) { return cased(text, Case::title, Case::lower, Case::lower); }

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

Value Arguments::get(std::size_t place, std::string_view name, Value otherwise) const {
  if (place < positional.size()) return positional[place];
  for (const auto& [given, value] : named)
    if (given == name) return value;
  return otherwise;
}

Value apply_filter(const std::string& name, const Value& v, const Arguments& arguments, const std::string& source) {
  if (name == "trim") return std::string(stripped(text_of(v)));
  if (name == "length" || name == "count")
    return v.is_string() ? n_characters(v.get<std::string>()) : v.is_structured() ? v.size() : 0;
  if (name == "upper") return upper(text_of(v));
  if (name == "lower") return lower(text_of(v));
  if (name == "capitalize") return capitalized(text_of(v));
  if (name == "title") return title_of_words(text_of(v));
  if (name == "string") return text_of(v);
  if (name == "safe") return v;
  if (name == "replace")
    return replaced(text_of(v), text_of(arguments.get(0, "old")), text_of(arguments.get(1, "new")), source);
  if (name == "tojson") return json_of(v, arguments, source);
  if (name == "default" || name == "d") {
    const bool is_missing = v.is_discarded() || (is_true(arguments.get(1, "boolean", false)) && !is_true(v));
    return is_missing ? arguments.get(0, "default_value", "") : v;
  }
  if (name == "join" && v.is_array()) return joined(v, text_of(arguments.get(0, "d", "")), source);
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
      return std::string(stripped(text, name != "rstrip", name != "lstrip",
                                  arguments.positional.empty() ? kWhiteSpace : std::string_view(given)));
    if (name == "startswith") return text.starts_with(first);
    if (name == "endswith") return text.ends_with(first);
    if (name == "upper") return upper(text);
    if (name == "lower") return lower(text);
    if (name == "title") return title(text);
    if (name == "capitalize") return capitalized(text);
    if (name == "replace") return replaced(text, first, text_of(arguments.get(1, "")), source);
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

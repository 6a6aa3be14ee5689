#include "config/yaml_text.h"

#include <fmt/format.h>
#include <yaml-cpp/eventhandler.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <sstream>
#include <utility>

#include "base/printable.h"
#include "base/utf8.h"
#include "lockstep/error.h"

namespace lockstep::config {
namespace {

bool is_name_character(unsigned char c) { return std::isalnum(c) != 0 || c == '_'; }

bool is_control(char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; }

/// Translates the messages of yaml-cpp for somebody who writes a configuration.
std::string meaning_of(std::string_view message) {
  constexpr std::array<std::pair<std::string_view, std::string_view>, 19> kMeanings{{
      {"end of map", "a `{` is not closed by `}`, or a key is not followed by `: value`"},
      {"end of sequence", "a `[` is not closed by `]`, or a `,` is missing"},
      {"illegal tab", "a line is indented with a tab; YAML allows only blanks"},
      {"illegal flow end", "a `}` or `]` closes nothing"},
      {"illegal block entry", "a `-` is where no list can begin"},
      {"illegal map key", "a key is where no key can be: check how the lines are indented"},
      {"illegal map value",
       "a `: ` is where no value can begin: a text that contains it needs quotes, and keys of one "
       "group need the same indentation"},
      {"alias not found", "a value that begins with * needs quotes"},
      {"while scanning alias", "a value that begins with * needs quotes"},
      {"anchor is not defined", "a value that begins with * needs quotes"},
      {"anchor not found", "a value that begins with & needs quotes"},
      {"while scanning anchor", "a value that begins with & needs quotes"},
      {"unknown token",
       "a value begins with a character that has a meaning in YAML (such as @, `, % or |) and needs "
       "quotes"},
      {"illegal EOF", "a quoted text is not closed"},
      {"unknown escape", "a text in double quotes has an unknown escape; in single quotes, \\ has no meaning"},
      {"hex number", "\\x in a text in double quotes needs two hexadecimal digits"},
      {"invalid unicode", "\\u in a text in double quotes names no character"},
      {"bad file", "values are nested too deeply"},  // more than 500 levels
      {"illegal document indicator", "`---` or `...` is within a value"},
  }};
  for (const auto& [part, meaning] : kMeanings)
    if (message.find(part) != std::string_view::npos) return std::string(meaning);
  return fmt::format("the YAML reader reports: {}", message);
}

std::string_view line_of(std::string_view text, int line) {
  for (int i = 0; i < line; ++i) text.remove_prefix(std::min(text.size(), text.find('\n') + 1));
  return text.substr(0, text.find('\n'));
}

/// Forgets what it reads.
struct Skip final : YAML::EventHandler {
  void OnDocumentStart(const YAML::Mark&) override {}
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark&, YAML::anchor_t) override {}
  void OnAlias(const YAML::Mark&, YAML::anchor_t) override {}
  void OnScalar(const YAML::Mark&, const std::string&, YAML::anchor_t, const std::string&) override {}
  void OnSequenceStart(const YAML::Mark&, const std::string&, YAML::anchor_t, YAML::EmitterStyle::value) override {}
  void OnSequenceEnd() override {}
  void OnMapStart(const YAML::Mark&, const std::string&, YAML::anchor_t, YAML::EmitterStyle::value) override {}
  void OnMapEnd() override {}
};

/// Whether anything follows the first document. YAML::LoadAll never returns from a `,` where a document begins, which
/// it takes for one empty document after the other.
bool has_second_document(const std::string& text) {
  std::istringstream stream(text);
  YAML::Parser parser(stream);
  Skip skip;
  return parser.HandleNextDocument(skip) && parser.HandleNextDocument(skip);
}

}  // namespace

std::string hide_variables(std::string_view text) {
  std::string out;
  for (auto begin = text.find("${"); begin != std::string_view::npos; begin = text.find("${")) {
    const std::string_view rest = text.substr(begin + 2);
    const auto end = static_cast<std::size_t>(std::ranges::find_if_not(rest, is_name_character) - rest.begin());
    const bool is_closed = end < rest.size() && rest[end] == '}';
    out += text.substr(0, begin);
    out += is_closed ? fmt::format("{}{}{}", kOpen, rest.substr(0, end), kClose) : std::string(kBroken);
    text = is_closed ? rest.substr(end + 1) : rest;
  }
  return out += text;
}

std::string show_variables(std::string_view text) {
  std::string out(text);
  for (const auto& [hidden, shown] : {std::pair{kOpen, "${"}, std::pair{kClose, "}"}, std::pair{kBroken, "${"}})
    for (auto at = out.find(hidden); at != std::string::npos; at = out.find(hidden))
      out.replace(at, hidden.size(), shown);
  return out;
}

YAML::Node load_yaml(const std::string& text, const std::string& source, TextOf kind) {
  try {
    require(
        !has_second_document(text), ErrorCode::config_unreadable,
        "{}: expected one YAML document, found more after its end (`---`, or a text or `,` that belongs to nothing)",
        source);
    return YAML::Load(text);
  } catch (const YAML::Exception& e) {
    const int line = e.mark.is_null() ? 0 : e.mark.line;
    const bool has_line = kind == TextOf::file && !e.mark.is_null();
    const std::string_view found = line_of(text, line);
    const bool has_tab = found.substr(0, found.find_first_not_of(" \t")).find('\t') != std::string_view::npos;
    fail(ErrorCode::config_unreadable, "{}: this is not valid YAML: {}{}{}",
         has_line ? fmt::format("{}:{}", source, line + 1) : source, meaning_of(has_tab ? "illegal tab" : e.msg),
         found.empty() ? "" : ", found: " + printable(show_variables(found)),
         found.find(kBroken) == std::string_view::npos ? "" : "; `${` must be followed by NAME and `}`");
  }
}

void check_is_text(const std::string& content, const std::string& path) {
  require(!std::ranges::all_of(content, [](unsigned char c) { return std::isspace(c) != 0; }),
          ErrorCode::config_unreadable, "configuration file: {} is empty; expected lines of `key: value`", path);
  const auto control = std::ranges::find_if(
      content, [](char c) { return is_control(c) && std::string_view("\t\n\r\f").find(c) == std::string_view::npos; });
  const std::size_t at = std::min(valid_length(content), static_cast<std::size_t>(control - content.begin()));
  require(at == content.size(), ErrorCode::config_unreadable,
          "configuration file: expected text in UTF-8 in {}, found a byte 0x{:02x} at offset {}", path,
          static_cast<unsigned char>(content[std::min(at, content.size() - 1)]), at);
}

std::string lower(std::string_view text) {
  std::string out(text);
  std::ranges::transform(out, out.begin(), [](unsigned char c) { return std::tolower(c); });
  return out;
}

std::vector<std::string_view> words(std::string_view text) {
  std::vector<std::string_view> found;
  for (; !text.empty(); text.remove_prefix(std::min(text.size(), found.back().size() + 1)))
    found.push_back(text.substr(0, text.find(' ')));
  return found;
}

std::string quoted(const std::string& text) {
  const auto is_safe = [](unsigned char c) { return std::isalnum(c) || c == '_' || c == '.' || c == '/' || c == '-'; };
  // Other YAML readers must not read a name as a number or a boolean.
  constexpr std::array<std::string_view, 11> kReservedWords{"true", "false", "yes", "no",  "on", "off",
                                                            "null", "y",     "n",   "inf", "nan"};
  const bool plain = !text.empty() && (std::isalpha(static_cast<unsigned char>(text.front())) || text.front() == '/') &&
                     std::ranges::all_of(text, is_safe) &&
                     std::ranges::find(kReservedWords, lower(text)) == kReservedWords.end();
  if (plain) return text;
  std::string out = "\"";
  for (const char c : text) {
    // `$` is escaped too: a value that contains "${" must not be expanded when it is read back.
    if (c == '"' || c == '\\') {
      out += std::string("\\") + c;
    } else if (static_cast<unsigned char>(c) < 0x20 || c == '$' || c == 0x7f) {
      out += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
    } else {
      out += c;
    }
  }
  return out + "\"";
}

}  // namespace lockstep::config

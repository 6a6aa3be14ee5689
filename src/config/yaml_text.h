// Reads YAML with yaml-cpp, and reports what is wrong with a text in words that need no knowledge of the parser. Writes
// texts as YAML.
#pragma once

#include <yaml-cpp/yaml.h>

#include <string>
#include <string_view>
#include <vector>

namespace lockstep::config {

// `${NAME}` would end a plain scalar inside `{...}`. It therefore passes through YAML as NAME between two private-use
// characters and is replaced in the scalars afterwards. The value of a variable is never parsed as YAML.
inline constexpr std::string_view kOpen = "\xEE\x80\x80";    // U+E000
inline constexpr std::string_view kClose = "\xEE\x80\x81";   // U+E001
inline constexpr std::string_view kBroken = "\xEE\x80\x82";  // U+E002: a `${` without NAME and `}`

/// `text` with each `${NAME}` hidden from YAML.
std::string hide_variables(std::string_view text);
/// The opposite, for messages.
std::string show_variables(std::string_view text);

/// One YAML document, in which variables are hidden. `source` names the text in messages; for a file, the line is
/// appended. Throws Error (config_unreadable).
enum class TextOf { file, command_line };
YAML::Node load_yaml(const std::string& text, const std::string& source, TextOf kind);

/// Throws Error (config_unreadable) if a file of this content cannot be a configuration: it is empty, or it is not
/// text.
void check_is_text(const std::string& content, const std::string& path);

/// Text as YAML: plain if that is safe, otherwise in double quotes.
std::string quoted(const std::string& text);

/// Letters of ASCII in lower case.
std::string lower(std::string_view text);
/// The words of a text, which are separated by one blank.
std::vector<std::string_view> words(std::string_view text);

}  // namespace lockstep::config

#include "config/quoted.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <string_view>

namespace lockstep::config {
namespace {

std::string lower(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(), [](unsigned char c) { return std::tolower(c); });
  return text;
}

}  // namespace

std::string quoted(const std::string& text) {
  const auto is_safe = [](unsigned char c) { return std::isalnum(c) || c == '_' || c == '.' || c == '/' || c == '-'; };
  // Other YAML readers must not read a name as a number or a boolean.
  constexpr std::array<std::string_view, 11> kReservedWords{"true", "false", "yes", "no",  "on", "off",
                                                            "null", "y",     "n",   "inf", "nan"};
  const bool plain = !text.empty() && (std::isalpha(static_cast<unsigned char>(text.front())) || text.front() == '/') &&
                     std::all_of(text.begin(), text.end(), is_safe) &&
                     std::find(kReservedWords.begin(), kReservedWords.end(), lower(text)) == kReservedWords.end();
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

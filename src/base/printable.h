// Text from users and files that is printed on a terminal or written to the log. Names of files, classes and keys may
// contain escape sequences, which a terminal would execute, and line breaks, which would look like further lines of
// output. They may also be megabytes long. Results for programs (JSON, CSV) contain names as they are.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace lockstep {

/// Whether the text contains C0 control characters or DEL.
bool has_control_characters(std::string_view text);

/// A name or a value on one line: control characters (C0, DEL and C1) and bytes that are not UTF-8 are shown as \x1b.
/// Only the beginning and the end of a result of more than `max_bytes` are shown.
inline constexpr std::size_t kMaxNameBytes = 240;
inline constexpr std::size_t kMaxColumnBytes = 60;  // for names in a column of a table
std::string printable(std::string_view text, std::size_t max_bytes = kMaxNameBytes);

/// The last safeguard for whole messages and tables: treats each line in the same way, and keeps line breaks and tabs.
std::string printable_lines(std::string_view text);

}  // namespace lockstep

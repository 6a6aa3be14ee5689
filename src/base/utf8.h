// Text that JSON can store. Names of files and folders are bytes, and need not be UTF-8.
#pragma once

#include <string>

namespace lockstep {

/// `text`, with U+FFFD in place of what is not valid UTF-8.
std::string valid_utf8(const std::string& text);
inline bool is_utf8(const std::string& text) { return valid_utf8(text) == text; }

}  // namespace lockstep

// Texts as they are written into YAML files.
#pragma once

#include <string>

namespace lockstep::config {

/// Text as YAML: plain if that is safe, otherwise in double quotes.
std::string quoted(const std::string& text);

}  // namespace lockstep::config

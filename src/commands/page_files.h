// How a page and its figures are written.
#pragma once

#include <string>

#include "page/page.h"

namespace lockstep::commands {

/// Writes the page to `html` and, if `figures` is not empty, each figure to that folder. Returns the names of
/// what was written, one per line, for users.
std::string write_page(const page::Page& page, const std::string& html, const std::string& figures);

}  // namespace lockstep::commands

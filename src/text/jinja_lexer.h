// The tokens of a template (jinja.h): its text, and what is between {{ }} and {% %}. White space is removed according
// to the signs of blocks, trim_blocks and lstrip_blocks. Comments are dropped.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "text/jinja.h"

namespace lockstep::text::jinja {

struct Token {
  enum class Kind : std::uint8_t {
    text,
    begin_output,
    end_output,
    begin_block,
    end_block,
    name,
    number,
    string,
    symbol,
    end
  };
  Kind kind = Kind::end;
  std::string text{};
  int line = 1;
};

/// Throws chat_template, with the line.
std::vector<Token> tokens_of(std::string_view text, const std::string& source);

}  // namespace lockstep::text::jinja

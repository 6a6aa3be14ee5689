// The text of tokens of a model whose vocabulary may be larger than that of its tokenizer.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "text/tokenizer.h"

namespace lockstep::text {

enum class SpecialTokens : std::uint8_t { keep, skip };

/// Ids that the tokenizer does not have are left out.
std::string decode_known(const Tokenizer& tokenizer, std::span<const std::int32_t> ids,
                         SpecialTokens special = SpecialTokens::keep);

}  // namespace lockstep::text

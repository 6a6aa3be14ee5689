// The token with which the answers of conversations end, such as <|im_end|>. A model that has learnt them ends its own
// answers with it.
#pragma once

#include <cstdint>
#include <optional>

#include "data/conversations.h"
#include "text/tokenizer.h"

namespace lockstep::data {

/// The last token of most answers among the first conversations; none if they end with different ones, because they
/// were truncated, or if it is white space, which a template without a token for this puts there.
std::optional<std::int32_t> answer_end(const Conversations& set, const text::Tokenizer& tokenizer);

}  // namespace lockstep::data

// The token with which a chat template ends what the assistant says, such as <|im_end|>. A model that has learnt it
// ends its own answers with it.
#pragma once

#include <cstdint>
#include <optional>

#include "data/text_file.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace lockstep::data {

/// The first added token that the template writes after an answer; none if it has no token of its own for that. Throws
/// what ChatTemplate::render() throws.
std::optional<std::int32_t> answer_end(const text::ChatTemplate& chat, const text::Tokenizer& tokenizer);

/// The same for the template that a set of conversations records. None if it records none that can be used.
std::optional<std::int32_t> answer_end(const TextDescription& set, const text::Tokenizer& tokenizer);

}  // namespace lockstep::data

#include "data/conversations.h"

#include "lockstep/error.h"

namespace lockstep::data {

Conversation Conversations::read(std::int64_t i) const {
  require(i >= 0 && i < n_conversations(), ErrorCode::internal, "{} has no conversation {}", range_.file().path(), i);
  const TokenRange document = range_.document(static_cast<std::size_t>(i));
  Conversation out;
  out.tokens.resize(document.end - document.begin);
  range_.read_tokens(document.begin, out.tokens);
  for (const TokenRange& answer : range_.answers_in(document))
    out.answers.emplace_back(static_cast<std::int64_t>(answer.begin - document.begin),
                             static_cast<std::int64_t>(answer.end - document.begin));
  return out;
}

}  // namespace lockstep::data

#include "text/known_tokens.h"

#include <optional>
#include <vector>

#include "lockstep/error.h"

namespace lockstep::text {
namespace {

/// No value if the tokenizer lacks one of the ids.
std::optional<std::string> try_decode(const Tokenizer& tokenizer, std::span<const std::int32_t> ids) {
  try {
    return tokenizer.decode(ids);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::data_source) throw;
  }
  return std::nullopt;
}

}  // namespace

std::string decode_known(const Tokenizer& tokenizer, std::span<const std::int32_t> ids, SpecialTokens special) {
  std::vector<std::int32_t> known(ids.begin(), ids.end());
  if (special == SpecialTokens::skip) std::erase_if(known, [&](std::int32_t id) { return tokenizer.is_special(id); });
  if (auto text = try_decode(tokenizer, known)) return std::move(*text);
  std::erase_if(known, [&](const std::int32_t& id) { return !try_decode(tokenizer, std::span(&id, 1)); });
  return tokenizer.decode(known);
}

}  // namespace lockstep::text

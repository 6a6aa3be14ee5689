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
    if (error.code() != ErrorCode::tokenizer_id) throw;
  }
  return std::nullopt;
}

}  // namespace

std::string decode_known(const Tokenizer& tokenizer, std::span<const std::int32_t> ids) {
  if (auto text = try_decode(tokenizer, ids)) return std::move(*text);
  std::vector<std::int32_t> known;
  for (const std::int32_t& id : ids)
    if (try_decode(tokenizer, std::span(&id, 1))) known.push_back(id);
  return tokenizer.decode(known);
}

}  // namespace lockstep::text

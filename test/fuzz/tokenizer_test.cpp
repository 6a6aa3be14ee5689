// also: Corpus.tokenizer
// Fuzz target: tokenizer files. Input: a tokenizer.json or tokenizer.bin, 0xff, and a text that is encoded if the file
// is accepted. The encoded text must be decodable, with the same result each time.
#include "text/tokenizer.h"

#include <cstdlib>

#include "test/fuzz/fuzz.h"

FUZZ_TARGET(tokenizer) {
  using namespace lockstep;
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const std::size_t end = std::min(input.rfind('\xff'), input.size());
  const std::string_view text = input.substr(std::min(end + 1, input.size()));
  fuzz::no_crash([&] {
    const text::Tokenizer tokenizer = text::Tokenizer::parse("tokenizer", std::string(input.substr(0, end)));
    std::vector<std::int32_t> ids, again;
    tokenizer.encode(text, ids);
    tokenizer.encode(text, again);  // from the cache
    if (ids != again) std::abort();
    for (const std::int32_t id : ids)
      if (id < 0 || id >= tokenizer.vocabulary_size()) std::abort();
    if (tokenizer.decode(ids) != tokenizer.decode(again)) std::abort();
  });
  return 0;
}

// timeout: 300
// sanitizers: no
// Texts that make careless tokenizers slow: the time must grow with the length, not with its square.
#include <gtest/gtest.h>

#include <ctime>

#include "test/text/golden.h"

namespace lockstep::text {
namespace {

double processor_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

double seconds_to_encode(const Tokenizer& tokenizer, const std::string& text) {
  golden::Ids ids;
  const double begin = processor_seconds();
  tokenizer.encode(text, ids);
  return processor_seconds() - begin;
}

std::string repeat(std::string_view part, std::size_t n_bytes) {
  std::string text;
  while (text.size() < n_bytes) text += part;
  return text;
}

class HostileText : public testing::TestWithParam<std::string> {};

TEST_P(HostileText, TakesTimeInProportionToItsLength) {
  const Tokenizer tokenizer = golden::open(GetParam());
  constexpr std::size_t kShort = 64 << 10, kFactor = 16;  // up to 1 MiB
  const std::vector<std::pair<std::string, std::string>> parts = {
      {"one letter", "a"},
      {"letters without a blank", "thequickbrownfoxjumpsoverthelazydog"},
      {"digits", "0123456789"},
      {"blanks", " "},
      {"line feeds", "\n"},
      {"blanks and line feeds", "   \n"},
      {"punctuation", "!?-."},
      {"apostrophes", "'"},
      {"bytes that are not UTF-8", "\xff\xe2\x82"},
      {"combining marks of one class", "\xcc\x80"},
      {"combining marks in the wrong order", "\xcc\x80\xcc\x96\xcc\xb4"},
      {"beginnings of added tokens", "<|endoftext<|im_star<|end_stor"},
      {"added tokens", "<|endoftext|><|im_start|><|end_story|>"},
      {"Chinese", "\xe4\xb8\xad\xe6\x96\x87"},
      {"Hangul in parts", "\xe1\x84\x92\xe1\x85\xa1\xe1\x86\xab"},
      {"unknown code points", "\xf3\xa0\x84\x80"},
  };
  for (const auto& [name, part] : parts) {
    // The end of the text, which decides how its last spaces are split, cannot be seen from its start.
    const std::string small = repeat(part, kShort) + " x", large = repeat(part, kShort * kFactor) + " x";
    double small_seconds = 1e9, large_seconds = 1e9, limit = 0;
    // The shortest time of several attempts counts, since other programs disturb the measurement.
    for (int attempt = 0; attempt < 5 && large_seconds > limit; ++attempt) {
      small_seconds = std::min(small_seconds, seconds_to_encode(tokenizer, small));
      large_seconds = std::min(large_seconds, seconds_to_encode(tokenizer, large));
      // n log n, and caches that are too small, can make it up to twice the factor. Quadratic time would be 16 times
      // the factor.
      limit = 4.0 * kFactor * std::max(small_seconds, 1e-4);
    }
    EXPECT_LT(large_seconds, limit) << GetParam() << ", " << name << ", 64 KiB: " << small_seconds << " s";
  }
}

INSTANTIATE_TEST_SUITE_P(, HostileText, testing::Values("gpt2", "qwen2", "smollm", "llama-story", "tok512"));

}  // namespace
}  // namespace lockstep::text

#include "base/utf8.h"

#include <gtest/gtest.h>

#include "test/text/golden.h"

namespace lockstep {
namespace {

std::string repaired(std::string_view text) {
  std::string buffer;
  return std::string(valid_utf8(text, buffer));
}

TEST(Utf8, RoundTripsEveryCodePoint) {
  for (char32_t c = 0; c < 0x110000; ++c) {
    std::string text;
    append_code_point(text, c);
    const CodePoint read = code_point_at(text, 0);
    const bool is_surrogate = c >= 0xd800 && c < 0xe000;
    ASSERT_EQ(read.is_valid, !is_surrogate) << static_cast<std::uint32_t>(c);
    if (is_surrogate) continue;
    ASSERT_EQ(read.value, c);
    ASSERT_EQ(read.n_bytes, text.size());
    ASSERT_EQ(n_bytes_of(text[0]), text.size());
  }
}

TEST(Utf8, LeavesValidTextWhereItIs) {
  const std::string text = "ASCII, \xc3\xa9, \xe4\xb8\xad and \xf0\x9f\x98\x80";
  std::string buffer;
  EXPECT_EQ(valid_utf8(text, buffer).data(), text.data());
  EXPECT_TRUE(buffer.empty());
}

/// The Unicode Standard, section 3.9, table 3-8, and the best practice for U+FFFD.
TEST(Utf8, ReplacesMaximalSubparts) {
  const std::string r = "\xef\xbf\xbd";
  EXPECT_EQ(repaired("\x61\xf1\x80\x80\xe1\x80\xc2\x62\x80\x63\x80\xbf\x64"),
            "a" + r + r + r + "b" + r + "c" + r + r + "d");
  EXPECT_EQ(repaired("\xc0\xaf\xe0\x80\xbf\xf0\x81\x82\x41"), r + r + r + r + r + r + r + r + "A");  // overlong forms
  EXPECT_EQ(repaired("\xed\xa0\x80\xed\xbf\xbf\xed\xaf\x41"), r + r + r + r + r + r + r + r + "A");  // surrogates
  EXPECT_EQ(repaired("\xf4\x91\x92\x93\xff\x41\x80\xbf\x42"), r + r + r + r + r + "A" + r + r + "B");
  EXPECT_EQ(repaired("\xe1\x80\xe2\xf0\x91\x92\xf1\xbf\x41"), r + r + r + r + "A");  // truncated sequences
  EXPECT_EQ(repaired("eight bytes and then \xe4\xb8"), "eight bytes and then " + r);
}

/// Whatever the bytes are, the result is valid. Text is read in blocks of eight bytes, and where the blocks begin must
/// not matter.
TEST(Utf8, RepairsRandomBytes) {
  for (std::uint64_t seed = 0; seed < 2000; ++seed) {
    std::string text;
    for (std::uint64_t i = 0; i < seed % 40; ++i) {
      const auto random = text::golden::random(seed, i);
      text +=
          random[0] % 3 == 0 ? static_cast<char>(random[1]) : "ab\xc3\xa9\xe4\xb8\xad\xf0\x9f\x98\x80"[random[1] % 11];
    }
    const std::string result = repaired(text);
    EXPECT_EQ(valid_length(result), result.size());
    EXPECT_EQ(repaired("." + text), "." + result);
    EXPECT_EQ(repaired(text + "."), result + ".");
  }
}

}  // namespace
}  // namespace lockstep

// Names with escape sequences, line breaks, bytes that are not UTF-8, and megabytes.
#include "base/printable.h"
#include "base/utf8.h"

#include <gtest/gtest.h>

#include "base/failure.h"
#include "lockstep/log.h"

namespace lockstep {
namespace {

TEST(Printable, KeepsOrdinaryText) {
  EXPECT_EQ(printable("Käse 猫 \"x\" \\x1b"), "Käse 猫 \"x\" \\x1b");
  EXPECT_EQ(printable(""), "");
  EXPECT_EQ(printable_lines("a\n\tb  c\n"), "a\n\tb  c\n");
  EXPECT_EQ(printable_lines("\n\n"), "\n\n");
}

TEST(Printable, EscapesControlCharacters) {
  EXPECT_EQ(printable("a\x1b[31mb\r\n\t\x7f"), "a\\x1b[31mb\\x0d\\x0a\\x09\\x7f");
  EXPECT_EQ(printable(std::string_view("\0", 1)), "\\x00");
  EXPECT_EQ(printable("\xC2\x9B[31m\xC2\xA0"), "\\xc2\\x9b[31m\xC2\xA0");  // U+009B is ESC [, U+00A0 a space
  EXPECT_EQ(printable_lines("a\x1b]0;title\x07\nb\r"), "a\\x1b]0;title\\x07\nb\\x0d");
}

TEST(Printable, EscapesBytesThatAreNotUtf8) {
  EXPECT_EQ(printable("caf\xE9"), "caf\\xe9");
  EXPECT_EQ(printable("\xC0\xAF"), "\\xc0\\xaf");           // an overlong '/'
  EXPECT_EQ(printable("\xED\xA0\x80"), "\\xed\\xa0\\x80");  // a surrogate
  EXPECT_EQ(valid_length("ab\xFF"), 2u);
}

TEST(Printable, CutsLongNamesBetweenCharacters) {
  const std::string at_limit(kMaxNameBytes, 'a');
  EXPECT_EQ(printable(at_limit), at_limit);
  const std::string cut = printable(std::string(1 << 20, 'a').append("end"));
  EXPECT_LT(cut.size(), kMaxNameBytes + 40);
  EXPECT_TRUE(cut.starts_with("aaaa") && cut.ends_with("end")) << cut;
  EXPECT_NE(cut.find("[... 1048359 bytes ...]"), std::string::npos) << cut;
  std::string cats;
  for (int i = 0; i < 1000; ++i) cats += "猫";
  for (std::size_t max = 100; max < 112; ++max)
    EXPECT_EQ(valid_length(printable(cats, max)), printable(cats, max).size()) << max;
  EXPECT_LT(printable_lines("x\n" + std::string(1 << 20, 'b')).size(), 5000u);
  EXPECT_LT(printable(std::string(1000, '\x80')).size(), kMaxNameBytes + 40);  // no byte begins a character
}

TEST(Printable, ErrorsAndTheLogEscape) {
  log::configure(0, 1, "node1", false);
  ::testing::internal::CaptureStderr();
  print_error("error", ErrorCode::usage, "no \x1b[2Jfile\nsecond line");
  log::warning("a file \x1b[2J");
  const std::string text = ::testing::internal::GetCapturedStderr();
  EXPECT_EQ(text.find('\x1b'), std::string::npos) << text;
  EXPECT_NE(text.find("no \\x1b[2Jfile\nsecond line\n  remedy: "), std::string::npos) << text;
  EXPECT_NE(text.find("warning: a file \\x1b[2J\n"), std::string::npos) << text;
}

}  // namespace
}  // namespace lockstep

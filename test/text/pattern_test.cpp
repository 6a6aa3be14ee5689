#include "text/pattern.h"

#include <gtest/gtest.h>

#include <array>

#include "base/utf8.h"
#include "lockstep/error.h"

namespace lockstep::text {
namespace {

std::vector<std::string> matches(const Pattern& pattern, std::string_view text) {
  MatchMemory memory;
  std::vector<std::string> found;
  std::size_t from = 0;
  while (const auto match = pattern.find(text, from, memory)) {
    found.emplace_back(text.substr(match->begin, match->end - match->begin));
    from = match->end;
  }
  return found;
}

using Strings = std::vector<std::string>;

TEST(Pattern, FindsUnicodeClasses) {
  EXPECT_EQ(matches({R"(\p{L}+)", "t"}, "na\xc3\xafve 12 \xd0\x9f\xd1\x80 \xe4\xb8\xad"),
            (Strings{"na\xc3\xafve", "\xd0\x9f\xd1\x80", "\xe4\xb8\xad"}));
  EXPECT_EQ(matches({R"(\p{N}{1,3})", "t"}, "12345 \xe2\x85\xa7\xc2\xbd"),
            (Strings{"123", "45", "\xe2\x85\xa7\xc2\xbd"}));
  EXPECT_EQ(matches({R"(\p{Lu}\P{Lu}?)", "t"}, "aBcD"), (Strings{"Bc", "D"}));
  EXPECT_EQ(matches({R"((?i:'s|'ll))", "t"}, "'S 'lL x's"), (Strings{"'S", "'lL", "'s"}));
  EXPECT_EQ(matches({R"(\s+(?!\S)|\s+)", "t"}, "a   b  "), (Strings{"  ", " ", "  "}));
}

/// White space is exactly Unicode's White_Space: not U+180E, U+200B or U+FEFF.
TEST(Pattern, TakesWhiteSpaceAndWordCharactersAsOnigurumaDoes) {
  const Pattern space(R"(\s)", "t"), no_space(R"(\S)", "t"), in_class(R"([\s])", "t"), word(R"(\w)", "t");
  MatchMemory memory;
  std::vector<char32_t> spaces;
  for (char32_t c = 0; c < 0x110000; ++c) {
    if (c >= 0xd800 && c < 0xe000) continue;
    std::string text;
    append_code_point(text, c);
    const bool is_space = space.find(text, 0, memory).has_value();
    ASSERT_NE(is_space, no_space.find(text, 0, memory).has_value()) << static_cast<std::uint32_t>(c);
    ASSERT_EQ(is_space, in_class.find(text, 0, memory).has_value()) << static_cast<std::uint32_t>(c);
    if (is_space) spaces.push_back(c);
  }
  EXPECT_EQ(spaces, (std::vector<char32_t>{0x9,    0xa,    0xb,    0xc,    0xd,    0x20,   0x85,   0xa0,   0x1680,
                                           0x2000, 0x2001, 0x2002, 0x2003, 0x2004, 0x2005, 0x2006, 0x2007, 0x2008,
                                           0x2009, 0x200a, 0x2028, 0x2029, 0x202f, 0x205f, 0x3000}));
  const auto is_word = [&](std::string_view text) { return word.find(text, 0, memory).has_value(); };
  for (const char* yes : {"a", "7", "_", "\xcc\x81" /* a mark */, "\xe2\x80\xbf" /* U+203F */})
    EXPECT_TRUE(is_word(yes)) << yes;
  for (const char* no : {"-", "'", "\xc2\xbd" /* a fraction */, "\xe2\x80\x8c" /* U+200C */})
    EXPECT_FALSE(is_word(no)) << no;
}

TEST(Pattern, MatchesLiteralText) {
  const std::string special = R"(a.b*c[d]\e{2}(f)|^$ #-"\n)";
  EXPECT_EQ(matches(Pattern::literal(special, "t"), "x" + special + special), (Strings{special, special}));
  EXPECT_EQ(matches(Pattern::literal("\xe2\x96\x81", "t"), "a\xe2\x96\x81"), (Strings{"\xe2\x96\x81"}));
}

TEST(Pattern, PassesOnWhatBothDialectsUnderstand) {
  for (const char* same :
       {R"(\p{L}+|\P{Lu}|\p{^L})", "a{2}|b{2,}|c{2,3}?", R"([^\r\n\-\]]x)", "(?:a|b)(?=c)(?!d)(?>e)(?<=f)(?<!g)",
        "(?i:'s|'t)", R"(\x{1F600}\.\t\\)", "a++b*+c?+d+?", "[^a-z]."})
    EXPECT_EQ(to_pcre2(same, "t"), same);
}

TEST(Pattern, RefusesWhatTheDialectsTakeDifferently) {
  for (const auto& [expression, construct] : std::vector<std::array<const char*, 2>>{{R"(a\b)", R"(\b)"},
                                                                                     {R"(\h)", R"(\h)"},
                                                                                     {R"(\x41)", R"(\x)"},
                                                                                     {R"((a)\1)", R"(\1)"},
                                                                                     {R"(\p{Han})", R"(\p{Han})"},
                                                                                     {R"(\p{Alpha})", R"(\p{Alpha})"},
                                                                                     {R"(\pL)", R"(\p)"},
                                                                                     {R"([a\S])", R"(\S)"},
                                                                                     {"[a[b]]", "[b"},
                                                                                     {"[a&&b]", "&&"},
                                                                                     {"[]a]", "[]"},
                                                                                     {"[ab", "["},
                                                                                     {"(?m:a)", "(?m:"},
                                                                                     {"(?i)a", "(?i)"},
                                                                                     {"(?<n>a)", "(?<n"},
                                                                                     {"^a", "^"},
                                                                                     {"a$", "$"},
                                                                                     {"a{2}+", "{2}+"},
                                                                                     {"a{2}?", "{2}?"},
                                                                                     {"a{,2}", "{"},
                                                                                     {"a{x}", "{"},
                                                                                     {"a\\", "\\"},
                                                                                     {R"(\Z)", R"(\Z)"},
                                                                                     {R"(\R)", R"(\R)"}}) {
    try {
      to_pcre2(expression, "here");
      ADD_FAILURE() << expression;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::model_feature);
      EXPECT_EQ(std::string(error.what()),
                fmt::format("here has the pattern {}; `{}` in it is not supported", expression, construct));
    }
  }
}

/// PCRE2's own limit would end the search early.
TEST(Pattern, GivesBackAsManyBlanksAsThereAre) {
  const Pattern pattern(R"(\s*[\r\n]+|\s+(?!\S))", "t");
  const std::string blanks(20'000'000, ' ');
  MatchMemory memory;
  const auto match = pattern.find(blanks + "x", 0, memory);
  ASSERT_TRUE(match);
  EXPECT_EQ(match->end, blanks.size() - 1);
}

TEST(Pattern, StopsAPatternThatTakesForever) {
  const Pattern pattern("(?:a|aa)+[^a]x", "t");
  MatchMemory memory;
  EXPECT_THROW(pattern.find(std::string(100, 'a') + "bbx", 0, memory), Error);
}

}  // namespace
}  // namespace lockstep::text

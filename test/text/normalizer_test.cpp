#include "text/normalizer.h"

#include <gtest/gtest.h>
#include <utf8proc.h>

#include <cstdlib>

#include "base/utf8.h"
#include "lockstep/error.h"
#include "test/text/golden.h"

namespace lockstep::text {
namespace {

std::string nfc(std::string_view text) {
  std::string out;
  append_nfc(text, out);
  return out;
}

/// utf8proc's own normalisation, which takes quadratic time.
std::string reference_nfc(const std::string& text) {
  utf8proc_uint8_t* mapped = nullptr;
  const auto n =
      utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()), static_cast<utf8proc_ssize_t>(text.size()),
                   &mapped, static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
  const std::string out(reinterpret_cast<const char*>(mapped), static_cast<std::size_t>(n));
  std::free(mapped);
  return out;
}

std::string text_of(std::initializer_list<char32_t> points) {
  std::string text;
  for (const char32_t c : points) append_code_point(text, c);
  return text;
}

TEST(Nfc, ComposesKnownExamples) {
  EXPECT_EQ(nfc(text_of({'e', 0x301})), text_of({0xe9}));
  EXPECT_EQ(nfc(text_of({0x1112, 0x1161, 0x11ab})), text_of({0xd55c}));        // Hangul
  EXPECT_EQ(nfc(text_of({0x212b})), text_of({0xc5}));                          // a singleton
  EXPECT_EQ(nfc(text_of({0x958})), text_of({0x915, 0x93c}));                   // excluded from composition
  EXPECT_EQ(nfc(text_of({'q', 0x307, 0x323})), text_of({'q', 0x323, 0x307}));  // reordered
  EXPECT_EQ(nfc(text_of({0x1e0b, 0x323})), text_of({0x1e0d, 0x307}));
  EXPECT_EQ(nfc(text_of({0x344})), text_of({0x308, 0x301}));
  EXPECT_EQ(nfc(""), "");
}

/// Each code point before and after letters and marks of several classes.
TEST(Nfc, AgreesWithUtf8procForEveryCodePoint) {
  constexpr char32_t kLastAssigned = 0x323af;  // except tags and private use, which do not decompose
  for (char32_t c = 1; c <= kLastAssigned; ++c) {
    if (c >= 0xd800 && c < 0xe000) continue;
    const std::string text = text_of({'e', c, 0x301, 'x', c, 0x1161, c, 0x323, 0x30b, c, 'e', 0x327, c});
    ASSERT_EQ(nfc(text), reference_nfc(text)) << static_cast<std::uint32_t>(c);
  }
}

TEST(Nfc, AgreesWithUtf8procForRandomTexts) {
  const std::vector<std::pair<char32_t, std::uint32_t>> ranges = {
      {0x20, 95},      {0xc0, 0x140},   {0x300, 0x70},   {0x340, 0x40},  {0x900, 0x80},   {0x9be, 0x20},
      {0x1100, 0x100}, {0xac00, 0x200}, {0x1e00, 0x200}, {0x3040, 0x60}, {0x11080, 0x80}, {0xf900, 0x100}};
  for (std::uint64_t seed = 0; seed < 20000; ++seed) {
    std::string text;
    for (std::uint64_t i = 0; i < 1 + seed % 12; ++i) {
      const auto random = golden::random(seed, i);
      const auto& [first, n] = ranges[random[0] % ranges.size()];
      append_code_point(text, first + random[1] % n);
    }
    ASSERT_EQ(nfc(text), reference_nfc(text)) << seed;
  }
}

TEST(Normalizer, AppliesItsStepsInOrder) {
  using Kind = NormalizerStep::Kind;
  const Normalizer normalizer(
      {{Kind::prepend, "", "_"}, {Kind::replace, " ", "_"}, {Kind::replace, "__", "="}, {Kind::nfc, "", ""}});
  std::string buffers[2];
  EXPECT_EQ(normalizer.apply("a b  c", buffers), "_a_b=c");
  EXPECT_EQ(normalizer.apply(" a   e\xcc\x81", buffers), "=a=_\xc3\xa9");
  EXPECT_EQ(normalizer.apply("", buffers), "");
  const std::string unchanged = "nothing to do";
  EXPECT_EQ(Normalizer({{Kind::nfc, "", ""}, {Kind::replace, "z", "y"}}).apply(unchanged, buffers).data(),
            unchanged.data());
}

/// A small file must not fill memory.
TEST(Normalizer, LimitsWhatReplacementsMakeOfAText) {
  std::vector<NormalizerStep> doubled(60, {NormalizerStep::Kind::replace, "a", "aa"});
  std::string buffers[2];
  try {
    Normalizer(doubled).apply("a", buffers);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::data_source);
    EXPECT_STREQ(error.what(), "the tokenizer's replacement of a makes a text longer than 4128 bytes");
  }
  doubled.resize(5);
  EXPECT_EQ(Normalizer(doubled).apply(std::string(10000, 'a'), buffers).size(), 320000u);
}

}  // namespace
}  // namespace lockstep::text

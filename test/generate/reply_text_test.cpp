// The text of a reply as it arrives: whole characters only, and stop words.
#include "generate/reply_text.h"

#include <gtest/gtest.h>

#include "base/utf8.h"
#include "text/tokenizer.h"

namespace lockstep::generate {
namespace {

/// A token is a byte. As in real decoders, bytes that are not a character become U+FFFD.
std::string bytes(std::span<const std::int32_t> ids) {
  std::string raw, repaired;
  for (const std::int32_t id : ids) raw += static_cast<char>(id);
  return std::string(valid_utf8(raw, repaired));
}

struct Streamed {
  std::vector<std::string> parts;
  std::string all;
  bool is_stopped = false;
};

Streamed stream(const std::string& raw, const std::vector<std::string>& stop_words = {}) {
  const std::vector<std::int32_t> prompt{'a', 'b'};
  ReplyText reply(bytes, prompt, stop_words);
  Streamed out;
  for (const char c : raw) {
    out.parts.push_back(reply.add(static_cast<unsigned char>(c)));
    EXPECT_EQ(valid_length(out.parts.back()), out.parts.back().size()) << out.parts.back();
    EXPECT_EQ(out.parts.back().find("\xef\xbf\xbd"), std::string::npos) << raw;
  }
  out.parts.push_back(reply.finish());
  for (const std::string& part : out.parts) out.all += part;
  EXPECT_EQ(reply.text(), out.all);
  out.is_stopped = reply.is_stopped();
  return out;
}

TEST(ReplyText, GivesWholeCharacters) {
  const std::string text = "aé€😀z";
  const Streamed out = stream(text);
  EXPECT_EQ(out.all, text);
  EXPECT_EQ(out.parts, (std::vector<std::string>{"a", "", "é", "", "", "€", "", "", "", "😀", "z", ""}));
}

TEST(ReplyText, ReplacesWhatIsNoCharacter) {
  const std::vector<std::int32_t> none;
  ReplyText reply(bytes, none, {});
  EXPECT_EQ(reply.add('a'), "a");
  EXPECT_EQ(reply.add(0xe2), "");
  EXPECT_EQ(reply.add(0x82), "");
  EXPECT_EQ(reply.finish(), "\xef\xbf\xbd");  // a character that was never completed
  ReplyText other(bytes, none, {});
  EXPECT_EQ(other.add(0xe2), "");
  EXPECT_EQ(other.add('b'),
            "\xef\xbf\xbd"
            "b");
  ReplyText endless(bytes, none, {});
  std::string shown;
  for (int i = 0; i < 9; ++i) shown += endless.add(0xff);
  EXPECT_FALSE(shown.empty());  // it is not held back for ever
}

TEST(ReplyText, StopsBeforeAStopWord) {
  const Streamed out = stream("one END two", {"END"});
  EXPECT_EQ(out.all, "one ");
  EXPECT_TRUE(out.is_stopped);
  // What may be the start of a stop word is held back, and shown once it turns out not to be one.
  const Streamed none = stream("EN EEND", {"ENDE"});
  EXPECT_EQ(none.all, "EN EEND");
  EXPECT_EQ(none.parts[0], "");
  EXPECT_EQ(none.parts[2], "EN ");
  EXPECT_FALSE(none.is_stopped);
  // The stop word that comes first in the text counts.
  EXPECT_EQ(stream("abcdef", {"ef", "cd"}).all, "ab");
  EXPECT_EQ(stream("xaab", {"aab"}).all, "x");
  EXPECT_EQ(stream("größer", {"ß"}).all, "grö");
}

/// Pieces of words with a leading space, and byte fallback: the parts add up to the text that is decoded at once.
TEST(ReplyText, AgreesWithDecodingAtOnce) {
  const text::Tokenizer tokenizer = text::Tokenizer::open("test/golden/tokenizers/tok512.bin");
  const auto decode = [&](std::span<const std::int32_t> ids) { return tokenizer.decode(ids); };
  for (const std::string text : {"Once upon a time, there was a girl.", "naïve 😀 café\n\n  x", "日本語"}) {
    std::vector<std::int32_t> prompt, all;
    tokenizer.encode("She said:", prompt);
    tokenizer.encode(text, all, text::TemplateTokens::omit);
    ReplyText reply(decode, prompt, {});
    std::string parts;
    for (const std::int32_t id : all) parts += reply.add(id);
    parts += reply.finish();
    std::vector<std::int32_t> joined = prompt;
    joined.insert(joined.end(), all.begin(), all.end());
    EXPECT_EQ(tokenizer.decode(prompt) + parts, tokenizer.decode(joined));
  }
}

}  // namespace
}  // namespace lockstep::generate

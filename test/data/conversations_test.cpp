// Sets of conversations: the file, its checks, packing whole conversations into windows, and reading them one by one.
#include "data/text_range.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>

#include "data/text_set.h"
#include "hdf5/writer.h"
#include "test/data/text_files.h"

namespace lockstep::data {
namespace {

using Answers = std::vector<std::pair<std::int64_t, std::int64_t>>;

struct TestConversation {
  Ids tokens;
  Answers answers;
};

const std::vector<TestConversation> kConversations = {{{1, 2, 3, 4, 5}, {{2, 4}}},
                                                      {{6, 7, 8}, {{0, 1}, {2, 3}}},
                                                      {{9, 10, 11, 12, 13, 14, 15}, {{1, 2}, {5, 7}}},
                                                      {{16, 17}, {{1, 2}}}};

void write_conversations(const std::string& path, const std::vector<TestConversation>& conversations = kConversations,
                         int vocabulary_size = 20) {
  TextFileWriter writer(path, true, vocabulary_size);
  for (const TestConversation& c : conversations) {
    writer.append(c.tokens);
    for (const auto& [begin, end] : c.answers) writer.add_answer(begin, end);
    writer.end_document();
  }
  writer.finish({.vocabulary_size = vocabulary_size,
                 .tokenizer_hash = "0123456789abcdef",
                 .end_token = {},
                 .source = "test",
                 .chat_template = "{{ messages }}",
                 .chat_template_source = "here",
                 .special_tokens = {{"bos_token", "<s>"}}},
                kTestTokenizer);
}

Verification verify(const std::string& path) {
  const InputFile file(path);
  return verify_text_file(file, open_text_file(file), {});
}

std::unique_ptr<TextSet> open(const std::string& path, int length, bool pack = true, std::int64_t first = 0,
                              std::int64_t end = 0) {
  return open_text_set(path, first, end, {.sequence_length = length, .pack = pack});
}

TEST(Conversations, HaveTheSameLayoutWithoutTheUserBlock) {
  TemporaryFolder folder;
  write_conversations(folder / "set.h5");
  expect_same_layout_from_child(folder / "set.h5", open_text_file);
}

TEST(Conversations, ContainWhatWasWritten) {
  TemporaryFolder folder;
  const std::string path = folder / "set.h5";
  write_conversations(path);
  EXPECT_TRUE(verify(path).is_valid());
  const TextFile layout = open_text_file(InputFile(path));
  EXPECT_EQ(layout.n_answers, 6);
  EXPECT_EQ(layout.description.chat_template, "{{ messages }}");
  EXPECT_EQ(layout.description.chat_template_source, "here");
  EXPECT_EQ(layout.description.special_tokens, (std::map<std::string, std::string>{{"bos_token", "<s>"}}));
  const TextRange all(path), part(path, 1, 3);
  ASSERT_EQ(all.n_documents(), 4);
  EXPECT_TRUE(all.has_answers());
  EXPECT_EQ(all.tokenizer(), kTestTokenizer);
  for (std::int64_t i = 0; i < 4; ++i) {
    const Conversation c = all.conversation(i);
    EXPECT_EQ(c.tokens, kConversations[static_cast<std::size_t>(i)].tokens);
    EXPECT_EQ(c.answers, kConversations[static_cast<std::size_t>(i)].answers);
  }
  ASSERT_EQ(part.n_documents(), 2);
  EXPECT_EQ(part.conversation(1).tokens, kConversations[2].tokens);
  EXPECT_EQ(part.conversation(1).answers, kConversations[2].answers);
  EXPECT_ERROR(ErrorCode::data_range, "are not a range of the 4", TextRange(path, 2, 5));
  write_test_text(path);
  EXPECT_FALSE(TextRange(path).has_answers());
  EXPECT_EQ(TextRange(path).conversation(1).tokens, (Ids{4, 0}));
  EXPECT_TRUE(TextRange(path).conversation(1).answers.empty());
}

// Windows of 10 tokens: 0 and 1 fill 8 of the first; 2 does not fit there, so it opens the second; 3 still fits into
// the first.
TEST(Conversations, WholeOnesArePackedAndOnlyAnswersArePredicted) {
  TemporaryFolder folder;
  write_conversations(folder / "set.h5");
  const auto set = open(folder / "set.h5", 10);
  ASSERT_EQ(set->info().n_samples, 2);
  EXPECT_EQ(set->info().n_answer_tokens, 2 + 2 + 3 + 1);
  EXPECT_EQ(set->info().n_truncated, 0);
  EXPECT_EQ(set->info().n_left_out, 0);
  EXPECT_DOUBLE_EQ(set->info().used_part, 17.0 / 20.0);
  const ReadWindow first(*set, 0), second(*set, 1);
  EXPECT_EQ(first.tokens, (Ids{1, 2, 3, 4, 5, 6, 7, 8, 16, 17}));
  EXPECT_EQ(first.targets, (Ids{-1, 3, 4, -1, -1, -1, 8, -1, 17, -1})) << "the first token of one is not predicted";
  EXPECT_EQ(first.document_start, (Ids{0, 0, 0, 0, 0, 5, 5, 5, 8, 8}));
  EXPECT_EQ(first.positions, (Ids{0, 1, 2, 3, 4, 0, 1, 2, 0, 1}));
  EXPECT_EQ(second.tokens, (Ids{9, 10, 11, 12, 13, 14, 15, 0, 0, 0}));
  EXPECT_EQ(second.targets, (Ids{10, -1, -1, -1, 14, 15, -1, -1, -1, -1}));
  EXPECT_EQ(second.document_start, (Ids{0, 0, 0, 0, 0, 0, 0, 7, 7, 7}));
  EXPECT_EQ(second.positions, (Ids{0, 1, 2, 3, 4, 5, 6, 0, 1, 2}));
}

TEST(Conversations, LongOnesAreTruncatedAndCounted) {
  TemporaryFolder folder;
  const std::string path = folder / "set.h5";
  write_conversations(path);
  const auto packed = open(path, 3);
  // The answers of conversation 0 begin at its third token, and end beyond the window.
  EXPECT_EQ(packed->info().n_truncated, 2);
  EXPECT_EQ(packed->info().n_left_out, 0);
  ASSERT_EQ(packed->info().n_samples, 4);
  EXPECT_EQ(ReadWindow(*packed, 0).tokens, (Ids{1, 2, 3}));
  EXPECT_EQ(ReadWindow(*packed, 0).targets, (Ids{-1, 3, -1}));
  const auto rows = open(path, 2, false);
  EXPECT_EQ(rows->info().n_left_out, 2) << "the first token of conversation 1 is not predicted";
  EXPECT_EQ(rows->info().n_truncated, 1);
  ASSERT_EQ(rows->info().n_samples, 2);
  EXPECT_EQ(ReadWindow(*rows, 0).targets, (Ids{10, -1}));
  EXPECT_EQ(ReadWindow(*rows, 1).targets, (Ids{17, -1}));
  EXPECT_EQ(ReadWindow(*open(path, 4, false, 3), 0).tokens, (Ids{16, 17, 0, 0}));
  write_conversations(path, {{{1, 2, 3, 4, 5}, {{4, 5}}}});
  EXPECT_ERROR(ErrorCode::data_source, "none of its 1 conversations has an answer in its first 4 tokens; raise",
               open(path, 4));
  EXPECT_ERROR(ErrorCode::config_conflict, "set data.cross_documents=false",
               open_text_set(path, 0, 0, {.sequence_length = 4, .pack = true, .cross_documents = true}));
}

// Compares every window of random conversations with the definition: each conversation is in exactly one window.
TEST(Conversations, RandomOnesAreInOneWindowEach) {
  TemporaryFolder folder;
  std::mt19937 random(5);
  std::vector<TestConversation> all;
  for (int c = 0; c < 300; ++c) {
    TestConversation one;
    for (std::size_t n = 3 + random() % 60; one.tokens.size() < n;)
      one.tokens.push_back(c * 100 + static_cast<int>(one.tokens.size()));
    for (std::int64_t at = static_cast<std::int64_t>(random() % 3); at + 1 < std::ssize(one.tokens); at += 7)
      one.answers.emplace_back(
          at, std::min<std::int64_t>(at + 1 + static_cast<std::int64_t>(random() % 5), std::ssize(one.tokens)));
    all.push_back(one);
  }
  write_conversations(folder / "set.h5", all, 70000);
  constexpr int kLength = 50;
  const auto set = open(folder / "set.h5", kLength);
  std::set<int> seen;
  for (std::int64_t s = 0; s < set->info().n_samples; ++s) {
    const ReadWindow w(*set, s);
    for (int t = 0; t < kLength; ++t) {
      const int start = w.document_start[static_cast<std::size_t>(t)];
      const auto at = static_cast<std::size_t>(t);
      EXPECT_EQ(w.positions[at], t - start);
      const int token = w.tokens[at];
      const bool is_padding =
          t > start ? w.tokens[static_cast<std::size_t>(start)] == w.tokens[at] : t > 0 && token == 0;
      if (is_padding) {
        EXPECT_EQ(w.targets[at], -1);
        continue;
      }
      const TestConversation& one = all[static_cast<std::size_t>(token / 100)];
      EXPECT_EQ(token % 100, t - start) << "a conversation begins with its first token";
      if (t == start) {
        EXPECT_TRUE(seen.insert(token / 100).second);
      }
      const std::int64_t next = t - start + 1;
      const bool is_answer =
          std::ranges::any_of(one.answers, [&](const auto& a) { return next >= a.first && next < a.second; });
      const bool is_inside = next < std::ssize(one.tokens) && t + 1 < kLength;
      EXPECT_EQ(w.targets[at], is_answer && is_inside ? token + 1 : -1);
    }
  }
  EXPECT_EQ(std::ssize(seen), set->info().n_documents - set->info().n_left_out);
  EXPECT_GT(set->info().used_part, 0.9);
}

TEST(Conversations, AreTheFirstFit) {
  const std::vector<std::uint32_t> lengths{5, 6, 3, 2, 4, 8};
  const WindowPacking packing(lengths, 8);
  ASSERT_EQ(packing.n_windows(), 4u);
  const auto documents = [&](std::size_t w) {
    return std::vector<std::uint32_t>(packing.documents(w).begin(), packing.documents(w).end());
  };
  EXPECT_EQ(documents(0), (std::vector<std::uint32_t>{0, 2}));
  EXPECT_EQ(documents(1), (std::vector<std::uint32_t>{1, 3}));
  EXPECT_EQ(documents(2), (std::vector<std::uint32_t>{4}));
  EXPECT_EQ(documents(3), (std::vector<std::uint32_t>{5}));
  // More windows than may be open: the oldest is closed, although it has room.
  std::vector<std::uint32_t> many(kOpenWindows + 1, 7);
  many.push_back(1);
  const WindowPacking closed(many, 8);
  ASSERT_EQ(closed.n_windows(), kOpenWindows + 1);
  EXPECT_EQ(closed.documents(0).size(), 1u);
  EXPECT_EQ(closed.documents(1).size(), 2u);
  EXPECT_EQ(WindowPacking({}, 8).n_windows(), 0u);
}

TEST(Conversations, DamagedAnswersAreReported) {
  TemporaryFolder folder;
  const std::string path = folder / "set.h5";
  const auto foreign = [&](const std::vector<std::uint64_t>& answers, std::uint64_t columns = 2) {
    hdf5::Writer hdf5(path, {});
    const std::vector<std::uint16_t> tokens{1, 2, 3, 4, 5, 6};
    const std::vector<std::uint64_t> documents{0, 2, 6};
    hdf5.create_dataset("tokens", "uint16", {6});
    hdf5.write_rows("tokens", 0, 6, tokens.data());
    hdf5.create_dataset("documents", "uint64", {3});
    hdf5.write_rows("documents", 0, 3, documents.data());
    hdf5.create_dataset("answers", "uint64", {answers.size() / columns, columns});
    hdf5.write_rows("answers", 0, answers.size() / columns, answers.data());
    hdf5.create_dataset("tokenizer", "uint8", {2});
    hdf5.write_rows("tokenizer", 0, 2, "{}");
    hdf5.attribute("format", std::string(kTextFormat));
    hdf5.attribute("format_version", std::int64_t{2});
    hdf5.attribute("vocabulary_size", std::int64_t{10});
    hdf5.attribute("tokenizer_hash", std::string("a hash"));
    hdf5.close();
  };
  foreign({0, 2, 3, 4, 4, 6});
  EXPECT_EQ(ReadWindow(*open(path, 4), 0).targets, (Ids{2, -1, -1, -1}));
  EXPECT_EQ(open(path, 4)->info().n_samples, 2);
  const auto refuses = [&](const std::vector<std::uint64_t>& answers, const std::string& part) {
    foreign(answers);
    EXPECT_ERROR(ErrorCode::data_format, part, open(path, 4));
  };
  refuses({0, 2, 1, 3}, "answer 1 is from 1 to 3, after 2");
  refuses({0, 0}, "answer 0 is from 0 to 0");
  refuses({0, 1, 5, 7}, "answer 1 is from 5 to 7");
  refuses({1, 3}, "answer 0 of '/answers' is from 1 to 3, but its document ends at 2");
  foreign({0, 1, 2}, 3);
  EXPECT_ERROR(ErrorCode::data_format, "'/answers' must be uint64 (answers, 2)", open(path, 4));

  write_conversations(path);
  const TextFile layout = open_text_file(InputFile(path));
  const std::uint64_t other = 3;
  overwrite(path, layout.answers.offset + 8, std::as_bytes(std::span(&other, 1)));
  EXPECT_ERROR(ErrorCode::data_damaged, "damaged", open(path, 4));
}

}  // namespace
}  // namespace lockstep::data

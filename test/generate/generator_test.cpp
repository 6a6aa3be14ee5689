// The generator with an artificial model: batches, slots, beams, stop words and interruptions.
#include "generate/generator.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "test/generate/fake_model.h"

namespace lockstep::generate {
namespace {

constexpr std::int64_t kVocabulary = 20;

/// Token i is letter number i.
std::string letters(std::span<const std::int32_t> ids) {
  std::string out;
  for (const std::int32_t id : ids) out += static_cast<char>('a' + id);
  return out;
}

std::vector<Prompt> some_prompts(std::size_t n) {
  std::vector<Prompt> out;
  for (std::uint32_t i = 0; i < n; ++i) {
    out.push_back({.number = i, .ids = {}});
    for (std::uint32_t j = 0; j <= (i * 7) % 11; ++j)
      out.back().ids.push_back(static_cast<std::int32_t>((i * 5 + j * 3) % kVocabulary));
  }
  return out;
}

/// Generates one token after another according to the definition, without a cache.
std::vector<std::int32_t> greedy(const Prompt& prompt, std::size_t n, const std::vector<std::int32_t>& ends) {
  std::vector<std::int32_t> all = prompt.ids, reply;
  while (reply.size() < n) {
    const auto logits = logits_after(all, kVocabulary);
    reply.push_back(static_cast<std::int32_t>(std::ranges::max_element(logits) - logits.begin()));
    all.push_back(reply.back());
    if (std::ranges::find(ends, reply.back()) != ends.end()) break;
  }
  return reply;
}

std::vector<std::vector<std::vector<std::int32_t>>> tokens_of(const std::vector<std::vector<Reply>>& replies) {
  std::vector<std::vector<std::vector<std::int32_t>>> out;
  for (const auto& of_prompt : replies) {
    out.emplace_back();
    for (const Reply& reply : of_prompt) {
      out.back().push_back(reply.tokens);
      EXPECT_EQ(reply.tokens.size(), reply.log_probabilities.size());
    }
  }
  return out;
}

TEST(Generator, GreedyRepliesAreTheSameInAnyBatch) {
  const std::vector<Prompt> prompts = some_prompts(13);
  const std::vector<std::int32_t> ends{3};
  for (const std::int64_t slots : {1, 2, 5, 16}) {
    FakeModel model(slots, 40, kVocabulary);
    model.is_slow = slots != 2;
    Generator generator(model, letters, {.max_new_tokens = 12, .end_tokens = ends});
    std::vector<std::size_t> done;
    std::map<std::size_t, std::string> streamed;
    const auto replies = generator.generate(
        prompts, {.text = [&](std::size_t i, std::size_t, const std::string& text) { streamed[i] += text; },
                  .done = [&](std::size_t i, const auto&) { done.push_back(i); },
                  .goes_on = {}});
    ASSERT_EQ(replies.size(), prompts.size());
    for (std::size_t i = 0; i < prompts.size(); ++i) {
      ASSERT_EQ(replies[i].size(), 1u);
      const auto expected = greedy(prompts[i], 12, ends);
      EXPECT_EQ(replies[i][0].tokens, expected) << slots << " slots, prompt " << i;
      EXPECT_EQ(replies[i][0].text, streamed[i]);
      const bool has_ended = expected.back() == 3;
      EXPECT_EQ(replies[i][0].text, letters(std::span(expected).first(expected.size() - (has_ended ? 1 : 0))));
    }
    EXPECT_EQ(done.size(), prompts.size());
  }
}

TEST(Generator, DrawnRepliesAreTheSameInAnyBatch) {
  const std::vector<Prompt> prompts = some_prompts(9);
  std::vector<std::vector<std::vector<std::int32_t>>> first;
  for (const std::int64_t slots : {3, 7, 30}) {
    FakeModel model(slots, 40, kVocabulary);
    model.is_slow = slots > 3;
    Generator generator(
        model, letters,
        {.sampling = {.temperature = 1, .repetition_penalty = 1.1}, .replies = 3, .max_new_tokens = 15, .seed = 5});
    const auto tokens = tokens_of(generator.generate(prompts));
    if (first.empty()) first = tokens;
    EXPECT_EQ(tokens, first) << slots;
  }
  EXPECT_NE(first[0][0], first[0][1]);
  EXPECT_NE(first[0][1], first[0][2]);
  // A subset of the prompts, as a rank gets it.
  FakeModel model(3, 40, kVocabulary);
  Generator generator(
      model, letters,
      {.sampling = {.temperature = 1, .repetition_penalty = 1.1}, .replies = 3, .max_new_tokens = 15, .seed = 5});
  const auto part = tokens_of(generator.generate(std::span(prompts).subspan(4, 3)));
  EXPECT_EQ(part, (std::vector(first.begin() + 4, first.begin() + 7)));
}

/// With as many beams as possible sequences, the search finds the most probable sequence.
TEST(Generator, ManyBeamsFindTheBestReply) {
  constexpr std::int64_t kFew = 4, kLength = 3, kBeams = 64;
  for (const Prompt& prompt : some_prompts(4)) {
    Prompt few = prompt;
    for (std::int32_t& id : few.ids) id %= kFew;
    FakeModel model(kBeams, 40, kFew);
    Generator generator(model, letters, {.beams = kBeams, .replies = 5, .max_new_tokens = kLength});
    const auto replies = generator.generate(std::span(&few, 1));
    std::vector<std::pair<double, std::vector<std::int32_t>>> all;
    for (std::int32_t code = 0; code < kFew * kFew * kFew; ++code) {
      std::vector<std::int32_t> sequence = few.ids, reply;
      double sum = 0;
      for (const std::int32_t token : {code / 16, code / 4 % 4, code % 4}) {
        const auto logits = logits_after(sequence, kFew);
        double total = 0;
        for (const float l : logits) total += std::exp(double{l});
        sum += double{logits[static_cast<std::size_t>(token)]} - std::log(total);
        sequence.push_back(token);
        reply.push_back(token);
      }
      all.emplace_back(sum, reply);
    }
    std::ranges::sort(all, std::ranges::greater());
    ASSERT_EQ(replies[0].size(), 5u);
    for (std::size_t i = 0; i < 5; ++i) {
      EXPECT_EQ(replies[0][i].tokens, all[i].second) << i;
      double sum = 0;
      for (const float p : replies[0][i].log_probabilities) sum += double{p};
      EXPECT_NEAR(sum, all[i].first, 1e-4);
    }
  }
}

TEST(Generator, BeamRepliesAreTheSameInAnyBatch) {
  const std::vector<Prompt> prompts = some_prompts(7);
  std::vector<std::vector<std::vector<std::int32_t>>> first;
  for (const std::int64_t slots : {4, 8, 31}) {
    FakeModel model(slots, 40, kVocabulary);
    Generator generator(model, letters, {.beams = 4, .replies = 4, .max_new_tokens = 11, .end_tokens = {1, 2}});
    const auto tokens = tokens_of(generator.generate(prompts));
    if (first.empty()) first = tokens;
    EXPECT_EQ(tokens, first) << slots;
  }
}

TEST(Generator, StopsAtAStopWord) {
  const Prompt prompt{.number = 0, .ids = {1, 2, 3}};
  const std::string whole = letters(greedy(prompt, 12, {}));
  const std::string word = whole.substr(5, 2);
  const std::string expected = whole.substr(0, whole.find(word));
  FakeModel model(1, 40, kVocabulary);
  Generator generator(model, letters, {.max_new_tokens = 12, .stop_words = {"never", word}});
  const auto replies = generator.generate(std::span(&prompt, 1));
  EXPECT_EQ(replies[0][0].text, expected);
  EXPECT_EQ(replies[0][0].tokens.size(), expected.size() + 2);
  FakeModel with_beams(3, 40, kVocabulary);
  Generator beams(with_beams, letters, {.beams = 3, .max_new_tokens = 12, .stop_words = {"c", "f", "h", "k"}});
  const auto found = beams.generate(std::span(&prompt, 1));
  EXPECT_FALSE(found[0].empty());
  for (const auto& reply : found[0]) EXPECT_EQ(reply.text.find_first_of("cfhk"), std::string::npos) << reply.text;
}

TEST(Generator, EndsWhereTheContextEnds) {
  const Prompt prompt{.number = 0, .ids = {1, 2, 3}};
  FakeModel model(1, 8, kVocabulary);
  Generator generator(model, letters, {.max_new_tokens = 100});
  EXPECT_EQ(generator.generate(std::span(&prompt, 1))[0][0].tokens, greedy(prompt, 6, {}));
  FakeModel for_beams(2, 8, kVocabulary);
  Generator beams(for_beams, letters, {.beams = 2, .max_new_tokens = 100});
  EXPECT_EQ(beams.generate(std::span(&prompt, 1))[0][0].tokens.size(), 6u);
}

TEST(Generator, KeepsWhatWasGeneratedWhenInterrupted) {
  const std::vector<Prompt> prompts = some_prompts(5);
  FakeModel model(2, 40, kVocabulary);
  Generator generator(model, letters, {.max_new_tokens = 12});
  int n_calls = 0;
  const auto replies = generator.generate(prompts, {.text = {}, .done = {}, .goes_on = [&] { return ++n_calls <= 4; }});
  for (std::size_t i = 0; i < 2; ++i) EXPECT_EQ(replies[i][0].tokens, greedy(prompts[i], 5, {}));
  for (std::size_t i = 2; i < 5; ++i) EXPECT_TRUE(replies[i].empty());
  EXPECT_FALSE(replies[0][0].is_complete);
  // The next call starts afresh.
  EXPECT_EQ(generator.generate(std::span(prompts).last(1))[0][0].tokens, greedy(prompts[4], 12, {}));
}

TEST(Generator, TellsWhichRepliesAnInterruptHasEnded) {
  const Prompt prompt{.number = 0, .ids = {1, 2, 3}};
  for (const std::int64_t beams : {1, 8}) {
    FakeModel model(8, 40, kVocabulary);
    Generator generator(model, letters,
                        {.sampling = {.temperature = beams > 1 ? 0.0 : 1.0},
                         .beams = beams,
                         .replies = 8,
                         .max_new_tokens = 30,
                         .end_tokens = {3, 4, 5, 6}});
    int n_calls = 0, n_complete = 0;
    const auto replies =
        generator.generate(std::span(&prompt, 1), {.text = {}, .done = {}, .goes_on = [&] { return ++n_calls <= 3; }});
    for (const Reply& reply : replies[0]) {
      const bool has_ended = reply.tokens.back() >= 3 && reply.tokens.back() <= 6;
      EXPECT_EQ(reply.is_complete, has_ended);
      n_complete += has_ended ? 1 : 0;
    }
    EXPECT_EQ(replies[0].size(), beams > 1 ? 0u : 8u);
    EXPECT_TRUE(beams > 1 || (n_complete > 0 && n_complete < 8)) << n_complete;
  }
}

TEST(Generator, AddsOnlyWhatIsNewToAConversation) {
  FakeModel model(1, 60, kVocabulary), fresh(1, 60, kVocabulary);
  Generator generator(model, letters, {.max_new_tokens = 6}), reference(fresh, letters, {.max_new_tokens = 6});
  generator.keep_cache();
  Prompt prompt{.number = 0, .ids = {1, 2, 3, 4}};
  for (int turn = 0; turn < 4; ++turn) {
    const std::size_t before = model.n_prefilled;
    const auto reply = generator.generate(std::span(&prompt, 1))[0][0].tokens;
    EXPECT_EQ(reply, reference.generate(std::span(&prompt, 1))[0][0].tokens) << turn;
    // The last token of the previous reply was not yet in the cache.
    EXPECT_EQ(model.n_prefilled - before, turn == 0 ? 4u : 3u) << turn;
    prompt.ids.insert(prompt.ids.end(), reply.begin(), reply.end());
    prompt.ids.insert(prompt.ids.end(), {7, static_cast<std::int32_t>(turn)});
  }
  prompt.ids[2] = 9;  // a different history
  EXPECT_EQ(generator.generate(std::span(&prompt, 1))[0][0].tokens,
            reference.generate(std::span(&prompt, 1))[0][0].tokens);
}

}  // namespace
}  // namespace lockstep::generate

// ROUGE, stems and final numbers, compared with rouge_score, NLTK and the filters of lm-evaluation-harness
// (test/golden/make_rouge_golden.py). The answers of conversations are compared if ../shared is there.

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "text/answer_match.h"

namespace lockstep::text {
namespace {

using Json = nlohmann::json;

constexpr double kTolerance = 1e-7;  // the file has 8 digits after the point

const Json& golden() {
  static const Json json = Json::parse(std::ifstream("test/golden/rouge.json"));
  return json;
}

std::vector<double> f_measures(const std::string& reference, const std::string& text) {
  std::vector<double> out;
  for (const Stemming stemming : {Stemming::none, Stemming::porter}) {
    const RougeScores scores = rouge(reference, text, stemming);
    out.insert(out.end(), {scores.rouge1.f_measure, scores.rouge2.f_measure, scores.rouge_l.f_measure});
  }
  return out;
}

TEST(PorterStemmer, AgreesWithNltk) {
  std::istringstream words(golden()["stems"].get<std::string>());
  int n = 0;
  for (std::string word, stem; words >> word >> stem; ++n) EXPECT_EQ(porter_stem(word), stem) << word;
  EXPECT_GT(n, 2000);
}

TEST(Rouge, AgreesWithRougeScore) {
  for (const Json& c : golden()["texts"]) {
    const std::string reference = c[0], text = c[1];
    std::size_t i = 0;
    for (const Stemming stemming : {Stemming::none, Stemming::porter}) {
      const RougeScores scores = rouge(reference, text, stemming);
      for (const RougeScore& score : {scores.rouge1, scores.rouge2, scores.rouge_l})
        for (const double part : {score.precision, score.recall, score.f_measure})
          EXPECT_NEAR(part, c[2][i++].get<double>(), kTolerance) << reference << " | " << text << " | figure " << i;
    }
    EXPECT_EQ(i, c[2].size());
  }
}

/// The words of a text, separated by single spaces as by Python's split(" ").
std::vector<std::string> pieces(const std::string& text) {
  std::vector<std::string> out(1);
  for (const char c : text) {
    if (c == ' ')
      out.emplace_back();
    else
      out.back() += c;
  }
  return out;
}

std::string joined(const std::vector<std::string>& words) {
  std::string out;
  for (std::size_t i = 0; i < words.size(); ++i) out += (i > 0 ? " " : "") + words[i];
  return out;
}

std::string changed(const std::vector<std::string>& answers, std::size_t reference, std::size_t other, int kind) {
  if (kind == 0) return answers[other];
  std::vector<std::string> words = pieces(answers[reference]);
  if (kind == 2) return joined({words.rbegin(), words.rend()});
  std::vector<std::string> kept;
  for (std::size_t i = 0; i < words.size(); ++i)
    if (i % 3 != 2) kept.push_back(words[i]);
  return joined(kept);
}

TEST(Rouge, AgreesWithRougeScoreOnTheSharedAnswers) {
  std::ifstream file("../shared/data/chat/messages_eval.jsonl");
  if (!file) GTEST_SKIP() << "there is no ../shared/data/chat/messages_eval.jsonl";
  std::vector<std::string> answers;
  for (std::string line; std::getline(file, line);)
    answers.push_back(Json::parse(line)["messages"].back()["content"].get<std::string>());
  double greatest = 0;
  for (const Json& c : golden()["answers"]) {
    const auto reference = c[0].get<std::size_t>(), other = c[1].get<std::size_t>();
    const std::vector<double> found =
        f_measures(answers.at(reference), changed(answers, reference, other, c[2].get<int>()));
    for (std::size_t i = 0; i < found.size(); ++i) {
      greatest = std::max(greatest, std::abs(found[i] - c[3 + i].get<double>()));
      EXPECT_NEAR(found[i], c[3 + i].get<double>(), kTolerance) << "answers " << reference << " and " << other;
    }
  }
  RecordProperty("pairs", static_cast<int>(golden()["answers"].size()));
  EXPECT_LT(greatest, 1e-6);
}

TEST(AnswerMatch, FinalNumbersAreThoseOfTheHarness) {
  for (const Json& c : golden()["numbers"]) {
    const std::string reference = c[0], answer = c[1];
    const AnswerMatch match = match_answer(reference, answer);
    EXPECT_TRUE(match.has_final_number) << reference;
    EXPECT_EQ(match.is_exact, c[2].get<bool>()) << reference << " | " << answer;
    EXPECT_EQ(match.is_flexible, c[3].get<bool>()) << reference << " | " << answer;
  }
}

TEST(AnswerMatch, OtherTextsAreComparedWithoutTheirEnds) {
  EXPECT_TRUE(match_answer(" Yes, 4.\n", "Yes, 4.").is_exact);
  EXPECT_FALSE(match_answer("Yes, 4.", "yes, 4.").is_exact);
  EXPECT_FALSE(match_answer("Yes", "Yes No").is_exact);
  EXPECT_FALSE(match_answer("Yes", "Yes").has_final_number);
  EXPECT_TRUE(match_answer("", " ").is_exact);
  EXPECT_EQ(final_number("3 #### 4\n"), "4");
  EXPECT_EQ(final_number("3"), std::nullopt);
}

}  // namespace
}  // namespace lockstep::text

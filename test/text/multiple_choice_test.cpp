// Multiple-choice questions: the formats of the data sets, and Python's string functions that the harness applies to
// them. test/commands/evaluate_choices_test.py compares whole files with the harness.
#include "text/multiple_choice.h"
#include "base/utf8.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "lockstep/error.h"

namespace lockstep::text {
namespace {

using Json = nlohmann::json;

ChoiceQuestion parse(const Json& line) { return parse_choice_question(line.dump(), "line 1"); }

TEST(MultipleChoice, HellaSwagIsCleanedAsByTheHarness) {
  const ChoiceQuestion question = parse({{"activity_label", "X\u3000"},
                                         {"ctx_a", "\u00a0[header] How [title] Mix [step] it.  Now [a\nb] end "},
                                         {"ctx_b", "éVA Said"},
                                         {"endings", {" [substeps] one  two [title] three", "[", "[]", "a   b"}},
                                         {"label", "3"}});
  EXPECT_EQ(question.context, "X\u3000: \u00a0 How. Mix it. Now [a\nb] end Éva said");
  EXPECT_EQ(question.choices, (std::vector<std::string>{" one two. three", "[", "", "a  b"}));
  EXPECT_EQ(question.answer, 3u);
}

TEST(MultipleChoice, ReadsTheOtherForms) {
  const Json answers{{"text", {"dog", "bird"}}, {"label", {"1", "2"}}};
  const ChoiceQuestion arc = parse({{"question", "Which?"}, {"choices", answers}, {"answerKey", "2"}});
  EXPECT_EQ(arc.context, "Question: Which?\nAnswer:");
  EXPECT_EQ(arc.choices, (std::vector<std::string>{"dog", "bird"}));
  EXPECT_EQ(arc.answer, 1u);
  const ChoiceQuestion piqa = parse({{"goal", "Do it"}, {"sol1", "a"}, {"sol2", "b"}, {"label", 0}});
  EXPECT_EQ(piqa.context, "Question: Do it\nAnswer:");
  EXPECT_EQ(piqa.answer, 0u);
  const ChoiceQuestion plain = parse({{"context", "c "}, {"choices", {"x"}}, {"answer", 0}, {"more", nullptr}});
  EXPECT_EQ(plain.context, "c ");
}

TEST(MultipleChoice, RefusesWhatIsMissing) {
  const Json whole{{"context", "c"}, {"choices", {"x", "y"}}, {"answer", 1}};
  for (const auto& [key, value] : whole.items()) {
    Json without = whole, other = whole;
    without.erase(key);
    other[key] = Json::object();
    EXPECT_THROW(parse(without), Error) << key;
    EXPECT_THROW(parse(other), Error) << key;
  }
  for (const char* line : {"", "1", "null", "{\"endings\": []}", "{\"answerKey\": \"A\", \"question\": {}}",
                           "{\"answerKey\": \"A\", \"question\": \"q\", \"choices\": [1]}", "{\"sol1\": \"a\"}"})
    EXPECT_THROW(parse_choice_question(line, "line 1"), Error) << line;
}

TEST(MultipleChoice, CountsCharacters) {
  EXPECT_EQ(n_characters(""), 0u);
  EXPECT_EQ(n_characters("aé東😀"), 4u);
}

}  // namespace
}  // namespace lockstep::text

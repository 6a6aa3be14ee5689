// The text of a model card: what the Hub reads, and tables that no name can break.
#include "run/model_card.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace lockstep::run {
namespace {

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

ModelCard example() {
  ModelCard card;
  card.name = "story";
  card.license = "apache-2.0";
  card.model_type = "llama";
  card.origin = "trained further from `Qwen/Qwen2-0.5B`";
  card.base_model = "Qwen/Qwen2-0.5B";
  card.has_tokenizer = true;
  card.model = {{"parameters", "1,234"}};
  card.data = {{"training", "abstracts", "0 to 999 of 5,000", "200,000"}, {"validation", "abstracts_val", "100", "9"}};
  card.slices = {{"0 to 999", "50"}, {"1,000 to 1,999", "60"}};
  card.hyperparameters = {{"optimizer.kind", "adamw"}};
  card.training_losses = {{1, 4}, {2, 3}, {3, 2.5}};
  card.validation_losses = {{3, 2.75}};
  card.results = {{"this model, the best of the run", 3, {{"loss", 2.75}, {"perplexity", 15.6426}}}};
  card.validation_set = "abstracts_val";
  card.versions = {{"Lockstep", "0.1.0"}, {"libraries", std::string(500, 'x')}};
  return card;
}

TEST(ModelCard, BeginsWithWhatTheHubReads) {
  const std::string head = R"(---
license: apache-2.0
library_name: transformers
pipeline_tag: text-generation
tags:
- lockstep
- llama
base_model: Qwen/Qwen2-0.5B
metrics:
- loss
- perplexity
model-index:
- name: story
  results:
  - task:
      type: text-generation
    dataset:
      name: abstracts_val
      type: abstracts_val
    metrics:
    - type: loss
      value: 2.75
    - type: perplexity
      value: 15.6426
---

# story
)";
  EXPECT_EQ(text_of(example()).substr(0, head.size()), head);
}

TEST(ModelCard, HasATableForEachSubject) {
  const std::string text = text_of(example());
  EXPECT_TRUE(has(text, std::string(500, 'x')));
  for (const char* line :
       {"| training | `abstracts` | 0 to 999 of 5,000 | 200,000 |\n", "| 1,000 to 1,999 | 60 |\n",
        "| optimizer.kind | adamw |\n", "    training   █▃▁  4.000 to 2.500\n", "| 2 | 3.0000 |  |\n",
        "| 3 | 2.5000 | 2.7500 |\n", "| this model, the best of the run | 3 | 2.7500 | 15.6426 |\n",
        "| Lockstep | 0.1.0 |\n", "trained further from `Qwen/Qwen2-0.5B` with Lockstep"})
    EXPECT_TRUE(has(text, line)) << line << text;
}

TEST(ModelCard, SaysWhatIsUnknown) {
  ModelCard card = example();
  card.license.clear();
  card.data.clear();
  card.results.clear();
  card.training_losses.clear();
  card.validation_losses.clear();
  const std::string text = text_of(card);
  EXPECT_TRUE(has(text, "\nlicense: unknown\n")) << text;
  EXPECT_TRUE(has(text, "Unknown. `model.license` of the configuration")) << text;
  EXPECT_TRUE(has(text, "The model was not evaluated.")) << text;
  EXPECT_FALSE(has(text, "model-index")) << text;
  EXPECT_FALSE(has(text, "## Losses")) << text;
}

TEST(ModelCard, NamesCannotBreakItsTables) {
  ModelCard card = example();
  card.name = "a: b\n- c | d";
  card.data[0].name = "x`|y";
  card.hyperparameters = {{"optimizer.groups", "[\"*.bias | a\"]"}};
  const std::string text = text_of(card);
  EXPECT_TRUE(has(text, "- name: \"a: b\\\\x0a- c | d\"\n")) << text;
  EXPECT_TRUE(has(text, "\n# a: b\\\\x0a- c \\| d\n")) << text;
  EXPECT_TRUE(has(text, "| training | `x'\\|y` |")) << text;
  EXPECT_TRUE(has(text, "| optimizer.groups | \\[\"\\*.bias \\| a\"\\] |")) << text;
}

TEST(ModelCard, ShowsALongCurveInFewRows) {
  ModelCard card = example();
  card.training_losses.clear();
  for (std::int64_t step = 1; step <= 1000; ++step)
    card.training_losses.push_back({step, 10.0 / static_cast<double>(step)});
  card.validation_losses.clear();
  const std::string text = text_of(card), table = text.substr(text.find("| step | training loss"));
  const std::string rows = table.substr(0, table.find("\n\n"));
  EXPECT_EQ(std::count(rows.begin(), rows.end(), '\n'), 2 + 16 - 1) << rows;
  EXPECT_TRUE(has(rows, "\n| 1 | 10.0000 |  |")) << rows;
  EXPECT_TRUE(has(rows, "\n| 1000 | 0.0100 |  |")) << rows;
}

TEST(ModelCard, SparklineShowsMeansFromTheLeastToTheGreatest) {
  EXPECT_EQ(sparkline({}, 10), "");
  EXPECT_EQ(sparkline({3, 3, 3}, 10), "▁▁▁");
  EXPECT_EQ(sparkline({0, 7, 1, 6}, 10), "▁█▂▇");
  EXPECT_EQ(sparkline({0, 2, 8, 8}, 2), "▁█");
  EXPECT_EQ(sparkline({0, std::nan(""), std::numeric_limits<double>::infinity(), 1}, 10), "▁█");
}

}  // namespace
}  // namespace lockstep::run

// Results by class: what is counted, how the counts of ranks are added, and what is printed and drawn.
#include "tasks/image_classification/class_tally.h"

#include <gtest/gtest.h>

#include <cmath>

namespace lockstep::tasks {
namespace {

/// Outputs that are largest for the first class of `order`, then for the second, and so on.
std::vector<float> outputs(int n_classes, const std::vector<int>& order) {
  std::vector<float> out(static_cast<std::size_t>(n_classes), -100);
  for (std::size_t i = 0; i < order.size(); ++i) out[static_cast<std::size_t>(order[i])] = -static_cast<float>(i);
  return out;
}

TEST(ClassTally, CountsLabelsAndPredictions) {
  ClassTally tally(7, {"cat", "dog"});
  tally.add(0, outputs(7, {0}));
  tally.add(0, outputs(7, {1, 0}));
  tally.add(1, outputs(7, {2, 3, 4, 5, 1}));     // the label is fifth
  tally.add(1, outputs(7, {2, 3, 4, 5, 6, 1}));  // the label is sixth
  tally.add(-1, outputs(7, {1}));                // no label
  EXPECT_EQ(tally.n_samples(), 4);
  EXPECT_EQ(tally.count(0, 0), 1);
  EXPECT_EQ(tally.count(0, 1), 1);
  EXPECT_EQ(tally.count(1, 2), 2);
  EXPECT_EQ(tally.accuracy_of(0), 0.5);
  EXPECT_EQ(tally.accuracy_of(3), 0.0);
  EXPECT_EQ(tally.top5_accuracy(), 0.75);
  EXPECT_EQ(tally.summary(), "top-5 accuracy 75.00%");
  const nlohmann::ordered_json json = tally.json();
  EXPECT_EQ(json["classes"][0].dump(), R"({"class":0,"name":"cat","samples":2,"accuracy":0.5})");
  EXPECT_EQ(json["classes"][6].dump(), R"({"class":6,"name":"6","samples":0,"accuracy":null})");
  EXPECT_EQ(json["confusion"][1].dump(), "[0,0,2,0,0,0,0]");
}

TEST(ClassTally, OfEqualOutputsTheFirstCounts) {
  ClassTally tally(7, {});
  const std::vector<float> equal(7, 1.0f);
  tally.add(4, equal);
  tally.add(5, equal);
  EXPECT_EQ(tally.count(4, 0), 1);
  EXPECT_EQ(tally.top5_accuracy(), 0.5);
}

TEST(ClassTally, OutputsThatAreNotNumbersAreNeverRight) {
  ClassTally tally(7, {});
  std::vector<float> values = outputs(7, {1, 2, 3, 4, 5, 6});
  values[0] = std::nanf("");
  tally.add(0, values);
  EXPECT_EQ(tally.count(0, 1), 1);
  EXPECT_EQ(tally.top5_accuracy(), 0.0);
}

TEST(ClassTally, ABatchIsCountedWithoutItsPadding) {
  ClassTally tally(2, {});
  const std::vector<std::int32_t> labels = {0, 1, -1, -1};
  const std::vector<float> values = {1, 0, 1, 0, 0, 0, 0, 0};
  data::Batch batch;
  batch.n_samples = 2;
  batch.fields = {{}, std::as_bytes(std::span(labels)), {}};
  tally.add(batch, values);
  EXPECT_EQ(tally.n_samples(), 2);
  EXPECT_EQ(tally.count(1, 0), 1);
  EXPECT_EQ(tally.summary(), "") << "of two classes, each is among the first five";
}

TEST(ClassTally, TheCountsOfRanksAreAdded) {
  ClassTally a(7, {}), b(7, {}), both(7, {});
  a.add(0, outputs(7, {0}));
  b.add(6, outputs(7, {5, 6}));
  both.add_counts(a.counts());
  both.add_counts(b.counts());
  EXPECT_EQ(both.n_samples(), 2);
  EXPECT_EQ(both.count(6, 5), 1);
  EXPECT_EQ(both.top5_accuracy(), 1.0);
  EXPECT_ANY_THROW(ClassTally(3, {}).add_counts(a.counts()));
}

TEST(ClassTally, ManyClassesAreShownByWhatGoesWrongMost) {
  ClassTally tally(30, {});
  for (int label = 0; label < 30; ++label)
    for (int i = 0; i < 3; ++i) tally.add(label, outputs(30, {i < label % 3 ? 29 : label}));
  const std::string text = tally.text();
  EXPECT_NE(text.find("the 10 lowest of 30 classes"), std::string::npos) << text;
  EXPECT_NE(text.find("the 10 most frequent confusions"), std::string::npos) << text;
  EXPECT_NE(text.find("\n2            3    33.33%\n"), std::string::npos) << text;
}

TEST(ClassTally, ThePictureHasASquarePerPairOfClasses) {
  ClassTally tally(3, {"a<b", "c&d\x01", "e"});
  tally.add(0, outputs(3, {0}));
  tally.add(1, outputs(3, {2}));
  const std::string svg = tally.picture("RUN");
  EXPECT_NE(svg.find("<title>a&lt;b as a&lt;b: 1</title>"), std::string::npos);
  EXPECT_NE(svg.find("<title>c&amp;d as e: 1</title>"), std::string::npos);
  EXPECT_EQ(svg.find('\x01'), std::string::npos);
  EXPECT_NE(ClassTally(1000, {}).picture("many").find("</svg>"), std::string::npos);
}

}  // namespace
}  // namespace lockstep::tasks

// The types of the rows in a table of keys: what each accepts, and how it writes its value as YAML.
#include "config/key_types.h"

#include <gtest/gtest.h>

namespace lockstep::config {
namespace {

using Texts = std::vector<std::string>;
using Numbers = std::vector<double>;

Texts& texts(Config& config) { return config.train.freeze; }
Numbers& numbers(Config& config) { return config.train.class_weights; }

Value list(const Texts& items) { return {.is_list = true, .text = "", .items = items}; }
Value scalar(const std::string& text) { return {.is_list = false, .text = text, .items = {}}; }

TEST(KeyTypesTest, AListOfTexts) {
  const Key key = list_of_texts("x", texts);
  Config config;
  EXPECT_EQ(key.get(config), "[]");
  EXPECT_EQ(key.set(config, list({"layer1.*", "fc"})), Fit::good);
  EXPECT_EQ(config.train.freeze, (Texts{"layer1.*", "fc"}));
  EXPECT_EQ(key.get(config), "[\"layer1.*\", fc]");
  EXPECT_EQ(key.set(config, scalar("fc.weight learning_rate=1")), Fit::good) << "a list of one needs no brackets";
  EXPECT_EQ(config.train.freeze, (Texts{"fc.weight learning_rate=1"}));
  EXPECT_EQ(key.set(config, list({"a", ""})), Fit::out_of_range);
  EXPECT_EQ(config.train.freeze.size(), 1u) << "a wrong value changes nothing";
  EXPECT_EQ(key.set(config, scalar("")), Fit::good);
  EXPECT_TRUE(config.train.freeze.empty());
}

TEST(KeyTypesTest, AListOfNumbers) {
  const Key key = list_of_numbers("x", numbers, kPositive);
  Config config;
  EXPECT_EQ(key.get(config), "[]");
  EXPECT_EQ(key.accepts, "[NUMBER, ...], each 1e-30 to 1e30");
  EXPECT_EQ(key.set(config, list({"1", "2.5", "1e-8"})), Fit::good);
  EXPECT_EQ(config.train.class_weights, (Numbers{1, 2.5, 1e-8}));
  EXPECT_EQ(key.get(config), "[1, 2.5, 1.0e-08]");
  EXPECT_EQ(key.set(config, list({"1", "0"})), Fit::out_of_range);
  EXPECT_EQ(key.set(config, list({"1", "x"})), Fit::wrong_type);
  EXPECT_EQ(key.set(config, scalar("1")), Fit::wrong_type);
  EXPECT_EQ(config.train.class_weights.size(), 3u) << "a wrong value changes nothing";
  EXPECT_EQ(key.set(config, list({})), Fit::good);
  EXPECT_TRUE(config.train.class_weights.empty());
}

}  // namespace
}  // namespace lockstep::config

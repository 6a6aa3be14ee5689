// Wrong configurations: the message names the place, what was found and the remedy, whatever the input is.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "config/parser.h"
#include "lockstep/error.h"

namespace lockstep::config {
namespace {

class ConfigMessages : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (std::filesystem::temp_directory_path() / "lockstep_config_XXXXXX").string();
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    directory_ = pattern;
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  std::string file(const std::string& text, const std::string& name = "a.yaml") {
    const std::string path = directory_ / name;
    std::ofstream(path) << text;
    return path;
  }

  /// The message of the error with this code; its paths are relative to the directory of the test.
  std::string message(const std::vector<std::string>& arguments, ErrorCode code) {
    try {
      parse(arguments);
      ADD_FAILURE() << "no error";
      return "";
    } catch (const Error& e) {
      EXPECT_EQ(entry(e.code()).code, entry(code).code) << e.what();
      std::string text = e.what();
      const std::string prefix = directory_.string() + "/";
      for (auto at = text.find(prefix); at != std::string::npos; at = text.find(prefix)) text.erase(at, prefix.size());
      return text;
    }
  }

  std::filesystem::path directory_;
};

TEST_F(ConfigMessages, ChecksOfSeveralKeysNameThePlacesOfThoseThatWereSet) {
  const std::string path = file("train: {epochs: 2}\nschedule:\n  warmup_epochs: 3\n");
  EXPECT_TRUE(message({path}, ErrorCode::config_conflict).starts_with("a.yaml:3, a.yaml:1: schedule.warmup_epochs"));
  EXPECT_TRUE(message({path, "train.epochs=1"}, ErrorCode::config_conflict).starts_with("a.yaml:3, command line: "));
  // A place whose text is the prefix of another's (a.yaml:1 and a.yaml:12) is still a different place.
  const std::string far = file("schedule: {warmup_epochs: 3}\n\n\n\n\n\n\n\n\n\n\ntrain: {epochs: 2}\n");
  EXPECT_TRUE(message({far}, ErrorCode::config_conflict).starts_with("a.yaml:1, a.yaml:12: schedule.warmup_epochs"));
}

TEST_F(ConfigMessages, PlacesOfTheKeysThatWereSetAreKept) {
  const Config c = parse({file("train:\n  freeze: [fc]\n"), "checkpoint.best=auto"});
  EXPECT_TRUE(c.places({"train.freeze"}).ends_with("a.yaml:2: "));
  EXPECT_EQ(c.places({"checkpoint.best", "checkpoint.keep"}), "command line: ");
  EXPECT_EQ(c.places({"checkpoint.keep"}), "");
  EXPECT_EQ(Config().places({"train.freeze"}), "");
}

TEST_F(ConfigMessages, UnknownKeysWithAnyValue) {
  EXPECT_EQ(message({file("train: {epoch: [[1, 2], {a: 3}]}\n")}, ErrorCode::config_invalid),
            "a.yaml:1: there is no key train.epoch; the nearest is train.epochs");
  EXPECT_EQ(message({"zzzz=[[1]]"}, ErrorCode::config_invalid), "command line: there is no key zzzz");
  EXPECT_EQ(message({"zzzz={a: {b: {c: {d: 1}}}}"}, ErrorCode::config_invalid),
            "command line: there is no key zzzz.a.b");
}

TEST_F(ConfigMessages, ListsOfWrongElements) {
  EXPECT_EQ(message({"train.freeze=[fc, [a, b]]"}, ErrorCode::config_invalid),
            "command line: train.freeze: expected a list [TEXT, ...], none of them empty, found a list that contains "
            "another list");
  EXPECT_TRUE(message({"data.augment=[{a: 1}]"}, ErrorCode::config_invalid).ends_with("contains a group of keys"));
  EXPECT_TRUE(
      message({"data.mean=[0.5, ~]"}, ErrorCode::config_invalid).ends_with("contains an element without a value"));
  EXPECT_EQ(message({"train.freeze=[\"\"]"}, ErrorCode::config_invalid),
            "command line: train.freeze: expected a list [TEXT, ...], none of them empty, found [\"\"]");
}

TEST_F(ConfigMessages, EmptyKeys) {
  EXPECT_EQ(message({file("run: {seed: 1}\n\"\": 1\n")}, ErrorCode::config_unreadable),
            "a.yaml:2: expected `key: value`, found an empty key");
  EXPECT_EQ(message({file("train: {\"\": 1}\n")}, ErrorCode::config_unreadable),
            "a.yaml:1: expected `key: value`, found an empty key in the group train");
}

TEST_F(ConfigMessages, DeepNesting) {
  const std::string deep = std::string(2000, '[') + std::string(2000, ']');
  const std::string text = message({"data.augment=" + deep}, ErrorCode::config_unreadable);
  EXPECT_NE(text.find("values are nested too deeply"), std::string::npos) << text;
  EXPECT_LT(text.size(), 600u) << "the value is cut";
  EXPECT_NE(message({file("train: {x: " + deep + "}\n")}, ErrorCode::config_unreadable).find("nested too deeply"),
            std::string::npos);
  const std::string groups = std::string(2000, '{') + std::string(2000, '}');
  EXPECT_LT(message({"data.augment=" + groups}, ErrorCode::config_unreadable).size(), 600u);
  std::string indented;
  for (int i = 0; i < 1000; ++i) indented += std::string(static_cast<std::size_t>(i), ' ') + "a:\n";
  EXPECT_NE(message({file(indented)}, ErrorCode::config_unreadable).find("nested too deeply"), std::string::npos);
}

TEST_F(ConfigMessages, NamesWithControlCharactersAndMegabytes) {
  EXPECT_EQ(message({file("\"trai\\en\": 1\n")}, ErrorCode::config_invalid).substr(0, 35),
            "a.yaml:1: there is no key trai\\x1bn");
  const std::string key(200000, 'k');
  EXPECT_LT(message({file(key + ": 1\n")}, ErrorCode::config_unreadable).size(), 800u);  // YAML allows 1,024 bytes
  const std::string text = message({key + "=1"}, ErrorCode::config_invalid);
  EXPECT_LT(text.size(), 500u);
  EXPECT_LT(message({"run.seed=" + key}, ErrorCode::config_invalid).size(), 500u);
}

TEST_F(ConfigMessages, GroupsWhoseFactorsOverflow) {
  EXPECT_EQ(
      message({"optimizer.groups=[fc weight_decay=1e31]"}, ErrorCode::config_invalid),
      "command line: optimizer.groups: expected a weight_decay of 0 to 1e30, found 1e+31 in \"fc weight_decay=1e31\"");
  EXPECT_NE(message({"optimizer.groups=[fc learning_rate=1e31]"}, ErrorCode::config_invalid).find("0 to 1e30"),
            std::string::npos);
  EXPECT_EQ(message({"optimizer.groups=[fc learning_rate=1e30]", "optimizer.learning_rate=1e-30"},
                    ErrorCode::config_conflict),
            "command line: optimizer.groups: expected a learning rate of at most 1e30 times optimizer.learning_rate "
            "(1e-30), found \"fc learning_rate=1e30\"");
  EXPECT_EQ(
      parse({"optimizer.groups=[fc learning_rate=1e10]", "optimizer.learning_rate=1e-10"}).optimizer.groups.size(), 1u);
}

TEST_F(ConfigMessages, SettingsThatWouldNeverTakeEffect) {
  EXPECT_EQ(
      message({"evaluation.patience=3", "evaluation.every_epochs=0", "data.validation=a.h5"},
              ErrorCode::config_conflict),
      "command line: evaluation.patience=3 compares evaluations during the training: set evaluation.every_epochs or "
      "evaluation.every_steps, found 0 for both");
  EXPECT_EQ(
      parse({"evaluation={patience: 3, every_epochs: 0, every_steps: 10}", "data.validation=a.h5"}).evaluation.patience,
      3);
  EXPECT_EQ(message({"checkpoint.best=accuracy"}, ErrorCode::config_conflict),
            "command line: checkpoint.best=accuracy compares evaluations and needs data.validation, found nothing");
  EXPECT_EQ(parse({"checkpoint.best=accuracy", "data.validation=a.h5"}).checkpoint.best, "accuracy");
}

TEST_F(ConfigMessages, MarksOfYamlOnTheCommandLineNeedQuotes) {
  for (const std::string text :
       {"%x", "&x", "!x", "!x y", "&x y", "|", "|x", ">", ">-", "---", "--- x", "...", " &x"}) {
    const std::string found = message({"run.name=" + text}, ErrorCode::config_unreadable);
    EXPECT_NE(found.find("found " + text + ","), std::string::npos) << found;
    EXPECT_NE(found.find("quotes"), std::string::npos) << found;
    EXPECT_EQ(parse({"data.train=\"" + text + "\""}).data.train, text);
    message({"train.epochs=" + text}, ErrorCode::config_unreadable);
  }
  EXPECT_EQ(parse({"run.name=---x"}).run.name, "---x");
  EXPECT_EQ(parse({"data.train=.../a.h5"}).data.train, ".../a.h5");
}

TEST_F(ConfigMessages, ALineFeedOnTheCommandLineIsNotABlank) {
  for (const std::string text : {"a\nb", "a\n", "\na", "'a\nb'", "\"a\nb\"", "a\r\nb"}) {
    EXPECT_NE(message({"run.name=" + text}, ErrorCode::config_invalid).find("without control characters"),
              std::string::npos);
    EXPECT_EQ(parse({"data.train=" + text}).data.train, text);
  }
  EXPECT_EQ(parse({"model.config={\n\"a\": 1\n}"}).model.config, "{\n\"a\": 1\n}");
  EXPECT_EQ(parse({"data.mean=[0.5,\n0.5]"}).data.mean.size(), 2u);
}

TEST_F(ConfigMessages, ADamagedPreviousConfigurationIsNamed) {
  const auto reason = [](const std::string& before) {
    try {
      learning_differences(before, Config(), "runs/a/config.yaml");
      return std::string();
    } catch (const Error& error) {
      return std::string(error.what());
    }
  };
  EXPECT_TRUE(reason("run: {name: a}\ntrain: [1\n").starts_with("runs/a/config.yaml:")) << reason("train: [1\n");
  EXPECT_NE(reason(std::string("a\0b", 3)).find("runs/a/config.yaml"), std::string::npos);
  EXPECT_EQ(reason(""), "");
}

}  // namespace
}  // namespace lockstep::config

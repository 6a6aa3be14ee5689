// What a checkpoint records for inference: it is made from the configuration and the train set, written, read and
// checked.
#include "tasks/image_classification/description.h"
#include "data/image_set.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "lockstep/error.h"
#include "tasks/task.h"

namespace lockstep::tasks {
namespace {

data::ImageSetInfo train_set() {
  data::ImageSetInfo set;
  set.path = "train.h5";
  set.height = set.width = 32;
  set.channels = 3;
  set.classes = 2;
  set.mean = {0.4914f, 0.4822f, 0.4465f};
  set.stddev = {0.247f, 0.2435f, 0.2616f};
  set.class_names = {"cat", "dog"};
  return set;
}

std::string damage_of(const nlohmann::json& inference) {
  try {
    image_description(inference, 2, "file.h5");
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::checkpoint_damaged);
    return error.what();
  }
  return "no error";
}

TEST(ImageDescription, IsThatOfTheTrainSetAndTheConfiguration) {
  Config config;
  ImageDescription description = describe(config, train_set());
  EXPECT_EQ(description.text(), "32x32x3");
  EXPECT_EQ(description.mean, train_set().mean);
  EXPECT_EQ(description.class_names, train_set().class_names);
  EXPECT_EQ(
      to_json(description).dump(),
      R"({"height":32,"width":32,"channels":3,"resize":0,"mean":[0.4914,0.4822,0.4465],"std":[0.247,0.2435,0.2616],)"
      R"("batch_norm_epsilon":1e-05,"class_names":["cat","dog"]})");
  config.data.image_size = 32;
  config.data.mean = {0.5, 0.5, 0.25};
  description = describe(config, train_set());
  EXPECT_EQ(description.text(), "32x32x3, resized to 36 first");
  EXPECT_EQ(description.mean, (std::vector<float>{0.5f, 0.5f, 0.25f}));
  config.data.validation_resize = 40;
  EXPECT_EQ(describe(config, train_set()).resize, 40);
}

TEST(ImageDescription, IsReadBackWithTheSameBits) {
  const ImageDescription description = describe(Config{}, train_set());
  const nlohmann::json stored = nlohmann::json::parse(to_json(description).dump());
  EXPECT_TRUE(image_description(stored, 2, "file.h5") == description);
}

TEST(ImageDescription, ImpossibleValuesAreReported) {
  const auto with = [](const char* key, const nlohmann::json& value) {
    nlohmann::json stored = nlohmann::json::parse(to_json(describe(Config{}, train_set())).dump());
    stored[key] = value;
    return damage_of(stored);
  };
  EXPECT_NE(damage_of("text").find("height is missing"), std::string::npos);
  EXPECT_NE(with("height", 0).find("height: expected a whole number from 1 to 65536, found 0"), std::string::npos);
  EXPECT_NE(with("width", 1e300).find("width"), std::string::npos);
  EXPECT_NE(with("mean", {0.5, 0.5}).find("mean: expected a list of 3 numbers"), std::string::npos);
  EXPECT_NE(with("std", {0.5, 0, 0.5}).find("std: expected a list of 3 positive numbers"), std::string::npos);
  EXPECT_NE(with("class_names", {1, 2}).find("class_names: expected a list of texts"), std::string::npos);
  EXPECT_NE(with("class_names", {"cat", "dog", "eel"}).find("class_names: expected at most 2 names"),
            std::string::npos);
  EXPECT_NE(with("batch_norm_epsilon", -1).find("batch_norm_epsilon"), std::string::npos);
}

TEST(ImageDescription, AdoptedItReplacesTheTrainSet) {
  Config config;
  config.data.validation = "synthetic";
  const nlohmann::json stored = nlohmann::json::parse(to_json(describe(config, train_set())).dump());
  const auto task = make_task(config);
  EXPECT_TRUE(task->adopt(stored, "file.h5").empty());
  task->open_validation_set();
  EXPECT_EQ(nlohmann::json(task->inference_stamp()), stored);
}

TEST(ImageDescription, WhatTheConfigurationAsksForStaysInEffect) {
  Config config;
  config.data.validation = "synthetic";
  config.data.image_size = 48;
  config.data.std = {1, 1, 1};
  const auto task = make_task(config);
  const std::vector<std::string> notes = task->adopt(to_json(describe(Config{}, train_set())), "file.h5");
  ASSERT_EQ(notes.size(), 2u);
  EXPECT_EQ(notes[0], "data.std of the configuration is used instead of the checkpoint's");
  EXPECT_NE(notes[1].find("48x48x3, resized to 54 first instead of the checkpoint's 32x32x3"), std::string::npos);
  EXPECT_NO_THROW(task->open_validation_set());
  EXPECT_EQ(task->inference_stamp()["height"], 48);
}

TEST(ImageDescription, ADataSetThatDoesNotFitIsReportedWithTheRemedyForTheDifference) {
  Config config;
  config.data.validation = "synthetic";  // 32x32, with the model's channels and classes
  const auto message_of = [&](const data::ImageSetInfo& set) -> std::string {
    const auto task = make_task(config);
    task->adopt(to_json(describe(Config{}, set)), "file.h5");
    try {
      task->open_validation_set();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::model_mismatch);
      return error.what();
    }
    return "no error";
  };
  data::ImageSetInfo other = train_set();
  other.height = other.width = 48;
  EXPECT_NE(message_of(other).find("set data.image_size=48"), std::string::npos);
  config.data.validation = "data/samples/cifar10_test.h5";
  other = train_set();
  other.channels = 1;
  other.mean = other.stddev = {0.5f};
  EXPECT_NE(message_of(other).find("import it again with --channels 1"), std::string::npos);
  EXPECT_NE(message_of(train_set()).find("the same class folders"), std::string::npos);
  config.model.classes = 5;  // the number of classes of the model, which cannot change
  EXPECT_NE(message_of(train_set()).find("has 10 classes, but the model of file.h5 has outputs for 5: give a data set"),
            std::string::npos);
}

// An export of another program has no class names. The data set on which it is evaluated has.
TEST(ImageDescription, ClassesWithoutNamesHaveThoseOfTheValidationSet) {
  Config config;
  config.data.validation = "data/samples/cifar10_test.h5";
  data::ImageSetInfo set = train_set();
  set.class_names = {};
  const auto task = make_task(config);
  task->adopt(to_json(describe(Config{}, set)), "file.h5");
  task->open_validation_set();
  EXPECT_EQ(task->make_tally()->json()["classes"][2]["name"], "bird");
}

TEST(ImageDescription, AnotherSizeOfImagesIsReported) {
  Config config;
  config.data.validation = "synthetic";
  data::ImageSetInfo set = train_set();
  set.height = set.width = 64;
  const auto task = make_task(config);
  task->adopt(to_json(describe(config, set)), "file.h5");
  try {
    task->open_validation_set();
    FAIL() << "images of 32x32 pixels were accepted";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("file.h5 is of a model for images of 64x64 pixels"), std::string::npos);
    EXPECT_NE(std::string(error.what()).find("set data.image_size=64"), std::string::npos);
  }
}

}  // namespace
}  // namespace lockstep::tasks

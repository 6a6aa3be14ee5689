// The image classification task: the data it accepts, what it reports, and what it records about the model.

#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <nlohmann/json.hpp>

#include "data/image_set.h"
#include "lockstep/error.h"
#include "tasks/task.h"

namespace lockstep::tasks {
namespace {

std::shared_ptr<const data::ImageSet> set_of(int size, int classes, int channels = 3) {
  return data::make_synthetic_set(1, 20, size, size, channels, classes, "train");
}

/// A set with a different path and names of classes that matter.
class NamedSet final : public data::ImageSet {
 public:
  explicit NamedSet(std::vector<std::string> class_names) : info_(set_of(8, 2)->info()) {
    info_.path = "set.h5";
    info_.class_names = std::move(class_names);
  }
  const data::ImageSetInfo& info() const override { return info_; }
  void read_image(std::int64_t, std::uint32_t, std::span<std::uint8_t>, std::int32_t&) const override {}

 private:
  data::ImageSetInfo info_;
};

std::string message_of(ErrorCode code, const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    EXPECT_EQ(entry(error.code()).code, entry(code).code) << error.what();
    return error.what();
  }
  return "no error";
}

TEST(ImageClassification, IsTheTaskOfResnet) {
  Config config;
  const auto task = make_task(config);
  EXPECT_EQ(task->model_name().title, "resnet-18");
  EXPECT_EQ(task->model_name().file_name, "resnet18");
  EXPECT_EQ(task->model_stamp().dump(), R"({"family":"resnet","depth":18,"stem":"cifar","classes":10})");
  EXPECT_TRUE(task->is_head("fc.weight"));
  EXPECT_FALSE(task->is_head("conv1.weight"));
  config.model.family = "unknown";
  EXPECT_NE(message_of(ErrorCode::not_supported, [&] { make_task(config); }).find("unknown"), std::string::npos);
}

TEST(ImageClassification, ItsFieldsAreImageLabelAndSampleId) {
  Config config;
  config.data.train = config.data.validation = "synthetic";
  config.data.image_size = 8;
  config.data.synthetic_samples = 30;
  const auto task = make_task(config);
  task->open_train_set();
  task->open_validation_set();
  EXPECT_EQ(task->validation_set()->info().n_samples, 3);
  EXPECT_EQ(task->describe_samples(), "8x8x3, 10 classes");
  const std::vector<data::Field> fields = task->train_set()->fields();
  ASSERT_EQ(fields.size(), 3u);
  EXPECT_EQ(fields[0].name, data::kImageField);
  EXPECT_EQ(fields[0].size_bytes(), 192u);
  EXPECT_EQ(fields[1].name, data::kLabelField);
  EXPECT_EQ(fields[2].name, data::kSampleIdField);
  EXPECT_EQ(data::sample_bytes(fields), 200u);

  std::vector<std::byte> image(192), label(4), id(4);
  const std::span<std::byte> targets[] = {image, label, id};
  task->train_set()->read(17, 0, targets);
  std::vector<std::uint8_t> pixels(192);
  std::int32_t expected = -1;
  data::make_synthetic_set(config.run.seed, 30, 8, 8, 3, 10, "train")->read_image(17, 0, pixels, expected);
  EXPECT_EQ(std::memcmp(image.data(), pixels.data(), 192), 0);
  EXPECT_EQ(std::memcmp(label.data(), &expected, 4), 0);
  const std::uint32_t sample = 17;
  EXPECT_EQ(std::memcmp(id.data(), &sample, 4), 0);
}

TEST(ImageClassification, ReportsLossAndAccuracyOfCountedSamples) {
  const auto task = make_task(Config{});
  const auto measures = task->measures();
  ASSERT_EQ(measures.size(), 2u);
  const LossSums sums{.loss = 6, .correct = 3, .count = 4, .weight = 4};
  EXPECT_EQ(measures[0].key, "loss");
  EXPECT_EQ(measures[0].of(sums), 1.5);
  EXPECT_EQ(measures[0].of({}), 0.0);
  EXPECT_EQ(measures[0].text(1.5, measures[0].step_digits), "1.5000");
  EXPECT_FALSE(measures[0].greater_is_better);
  EXPECT_EQ(measures[1].key, "accuracy");
  EXPECT_EQ(measures[1].of(sums), 0.75);
  EXPECT_EQ(measures[1].text(0.75, measures[1].step_digits), "75.0%");
  EXPECT_TRUE(measures[1].greater_is_better);
  EXPECT_EQ(task->quality_measure().key, "accuracy");
  EXPECT_EQ(task->nominal_count(64), 64.0);
}

TEST(ImageClassification, NamesTheKeysInWhichTwoModelsDiffer) {
  Config config;
  const nlohmann::json before = make_task(config)->model_stamp();
  EXPECT_TRUE(stamp_differences(before, make_task(config)->model_stamp()).empty());
  config.model.depth = 34;
  config.model.classes = 7;
  config.model.width = 16;  // recorded only if it is not the default
  std::string text;
  for (const auto& [key, was, is] : stamp_differences(before, make_task(config)->model_stamp()))
    text += key + " " + was + " " + is + "; ";
  EXPECT_EQ(text, "depth 18 34; classes 10 7; width its default 16; ");
  const auto back = stamp_differences(make_task(config)->model_stamp(), make_task(Config{})->model_stamp());
  ASSERT_EQ(back.size(), 3u);
  EXPECT_EQ(back[2].key + " " + back[2].before + " " + back[2].now, "width 16 its default");
}

/// A stamp may contain a config.json as text.
TEST(StampDifferences, NamesTheMembersOfObjectsInWhichTheyDiffer) {
  const nlohmann::json before{{"family", "llama"}, {"config", R"({"rope_theta": 10000, "layers": 2, "a": {"b": 1}})"}};
  nlohmann::ordered_json now = before;
  EXPECT_TRUE(stamp_differences(before, now).empty());
  now["config"] = R"({"rope_theta": 500, "layers": 2, "a": {"b": 2}, "bias": true})";
  std::string text;
  for (const auto& [key, was, is] : stamp_differences(before, now)) text += key + " " + was + " " + is + "; ";
  EXPECT_EQ(text, "config.rope_theta 10000 500; config.a {\"b\":1} {\"b\":2}; config.bias its default true; ");
  now["config"] = "text";
  EXPECT_EQ(stamp_differences(before, now).front().now, "\"text\"");
}

TEST(ImageClassification, RejectsDataThatDoNotFit) {
  Config config;
  // The message contains the remedy for the difference that it names.
  const auto error_of = [&](const std::shared_ptr<const data::ImageSet>& train,
                            const std::shared_ptr<const data::ImageSet>& validation) {
    return message_of(ErrorCode::model_mismatch, [&] { make_image_classification(config, train, validation); });
  };
  EXPECT_NE(error_of(set_of(8, 11), nullptr).find("set model.classes=11"), std::string::npos);
  EXPECT_NE(error_of(set_of(8, 10), set_of(8, 12)).find("set model.classes=12"), std::string::npos);
  EXPECT_NE(error_of(set_of(8, 10, 1), set_of(8, 10)).find("import one of them again with --channels"),
            std::string::npos);
  EXPECT_NO_THROW(make_image_classification(config, set_of(8, 10, 1), set_of(8, 10, 1)));
  EXPECT_NE(error_of(set_of(8, 10), set_of(16, 10))
                .find("8x8 pixels, but synthetic has images of 16x16: set data.image_size=8 to resize both"),
            std::string::npos);
  const auto named = [](std::vector<std::string> names) { return std::make_shared<NamedSet>(std::move(names)); };
  EXPECT_NE(error_of(named({"cat", "dog"}), named({"cat", "eel"}))
                .find("class 1 is 'dog' in the first and 'eel' in the second; import one again from a folder"),
            std::string::npos);
  EXPECT_NO_THROW(make_image_classification(config, named({"cat", "dog"}), named({"cat", "dog"})));
  EXPECT_NO_THROW(make_image_classification(config, named({"cat", "dog"}), named({})));
  EXPECT_NE(message_of(ErrorCode::config_invalid, [&] { make_task(config)->open_train_set(); }).find("found nothing"),
            std::string::npos);
}

}  // namespace
}  // namespace lockstep::tasks

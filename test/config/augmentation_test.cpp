// The keys for augmentation, for the size of validation images and for the average of the weights.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "config/parser.h"
#include "lockstep/error.h"

namespace lockstep::config {
namespace {

void expect_error(const std::vector<std::string>& overrides, ErrorCode code, const std::string& part) {
  try {
    (void)parse(overrides);
    ADD_FAILURE() << overrides.front() << " is accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
  }
}

TEST(AugmentationKeys, HaveTheirRanges) {
  const Config c = parse({"data.color_jitter=[0.4, 0.4, 0.4, 0.5]", "data.mixup=0.2", "data.cutmix=1",
                          "data.random_erase=0.1", "data.augment=[resized_crop, trivial_augment]"});
  EXPECT_EQ(c.data.color_jitter, (std::vector<double>{0.4, 0.4, 0.4, 0.5}));
  EXPECT_EQ(c.data.mixup, 0.2);
  expect_error({"data.color_jitter=[0.4, 0.4]"}, ErrorCode::config_invalid, "expected four numbers");
  expect_error({"data.color_jitter=[0.4, 0.4, 0.4, 0.6]"}, ErrorCode::config_invalid, "from 0 to 0.5, found 0.6");
  expect_error({"data.color_jitter=[-1, 0, 0, 0]"}, ErrorCode::config_invalid, "data.color_jitter");
  expect_error({"data.mixup=-0.2"}, ErrorCode::config_invalid, "data.mixup");
  expect_error({"data.cutmix=11"}, ErrorCode::config_invalid, "0 to 10");
  expect_error({"data.random_erase=1.5"}, ErrorCode::config_invalid, "0 to 1");
}

TEST(AugmentationKeys, TheSizeOfValidationImages) {
  const Config c = parse({"data.image_size=176", "data.validation_size=224", "data.validation_resize=232"});
  EXPECT_EQ(c.data.validation_size, 224);
  expect_error({"data.validation_size=224"}, ErrorCode::config_conflict,
               "data.validation_size requires data.image_size");
  expect_error({"data.image_size=176", "data.validation_size=224", "data.validation_resize=200"},
               ErrorCode::config_conflict, "must not be less than data.validation_size, found 200 and 224");
}

TEST(AugmentationKeys, TheAverageOfTheWeights) {
  EXPECT_FALSE(parse({"run.seed=1"}).ema.is_on());
  const Config c = parse({"ema={decay: 0.999, every_steps: 32}"});
  EXPECT_TRUE(c.ema.is_on());
  EXPECT_EQ(c.ema.every_steps, 32);
  expect_error({"ema.decay=1"}, ErrorCode::config_invalid, "0 to below 1");
  expect_error({"ema.every_steps=0"}, ErrorCode::config_invalid, "ema.every_steps");
}

}  // namespace
}  // namespace lockstep::config

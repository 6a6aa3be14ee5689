// The scalars of a step that depend on when the optimizer began.
#include "train/step_scalars.h"

#include <gtest/gtest.h>

namespace lockstep::train {
namespace {

TEST(StepScalarsTest, TheCorrectionOfAdamCountsFromItsFirstStep) {
  Config::Optimizer optimizer;
  optimizer.kind = "adamw";
  const auto at = [&](std::int64_t step, std::int64_t begin) {
    return make_step_scalars({.step = step, .optimizer_begin = begin, .nominal_count = 8}, optimizer);
  };
  EXPECT_FLOAT_EQ(at(0, 0).adam_correction1, 10.0F);  // 1 / (1 - 0.9)
  EXPECT_FLOAT_EQ(at(0, 0).adam_correction2, 1000.0F);
  EXPECT_EQ(at(100, 100).adam_correction1, at(0, 0).adam_correction1);
  EXPECT_EQ(at(103, 100).adam_correction2, at(3, 0).adam_correction2);
  EXPECT_EQ(at(103, 100).step, 103U) << "random numbers depend on the step of the run";
}

}  // namespace
}  // namespace lockstep::train

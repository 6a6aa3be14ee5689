// The groups of a checkpoint and the paths of their tensors.
#include "checkpoint/tensor_names.h"

#include <gtest/gtest.h>

namespace lockstep::checkpoint {
namespace {

TEST(StateGroup, ConvertsPathsToGroupsAndBack) {
  EXPECT_EQ(tensor_path(StateGroup::parameters, "fc.bias"), "/parameters/fc.bias");
  EXPECT_EQ(tensor_path(StateGroup::optimizer, "momentum/fc.bias"), "/optimizer/momentum/fc.bias");
  EXPECT_EQ(tensor_path(StateGroup::statistics, "bn1.running_mean"), "/statistics/bn1.running_mean");
  for (const StateGroup group :
       {StateGroup::parameters, StateGroup::optimizer, StateGroup::statistics, StateGroup::averages}) {
    const std::string path = tensor_path(group, "a/b.c");
    EXPECT_EQ(group_of(path), group);
    EXPECT_TRUE(is_in(group, path));
    EXPECT_EQ(tensor_name(path), "a/b.c");
  }
  EXPECT_FALSE(is_in(StateGroup::optimizer, "/parameters/fc.bias"));
}

TEST(StateGroup, OtherPathsAreInNoGroup) {
  EXPECT_EQ(group_of("/state"), std::nullopt);
  EXPECT_EQ(group_of("/parameters"), std::nullopt);
  EXPECT_EQ(group_of("parameters/fc.bias"), std::nullopt);
}

}  // namespace
}  // namespace lockstep::checkpoint

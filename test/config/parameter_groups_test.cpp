// Patterns for the names of parameters and layers.
#include "config/parameter_groups.h"

#include <gtest/gtest.h>

#include <vector>

namespace lockstep::config {
namespace {

TEST(ParameterNames, APatternSelectsAParameterOrALayer) {
  for (const char* pattern : {"layer1.0.bn1.weight", "layer1.0.bn1", "layer1.0", "layer1", "layer1.*", "*.bn1", "*bn1*",
                              "*", "layer*.weight", "*.weight", "l*r1.*.bn*"})
    EXPECT_TRUE(selects(pattern, "layer1.0.bn1.weight")) << pattern;
  for (const char* pattern : {"bn1", "layer", "layer1.0.bn", "*.bn2", "ayer1*", "layer1.0.bn1.weight.x", "", "*.bias"})
    EXPECT_FALSE(selects(pattern, "layer1.0.bn1.weight")) << pattern;
  EXPECT_TRUE(selects("conv1", "conv1.weight"));
  EXPECT_FALSE(selects("conv1", "layer1.0.conv1.weight"));
}

TEST(ParameterNames, NearestNamesAreParametersAndLayers) {
  const std::vector<std::string> names{"conv1.weight", "layer1.0.conv1.weight", "layer2.0.conv1.weight", "fc.weight"};
  EXPECT_EQ(nearest_names("layr1.*", names), "layer1, layer2, layer1.0");
  EXPECT_EQ(nearest_names("head.weight", names).substr(0, 9), "fc.weight");
}

}  // namespace
}  // namespace lockstep::config

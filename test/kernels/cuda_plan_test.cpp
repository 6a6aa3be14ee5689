// Which of cuDNN's plans a convolution uses without timing.
#include <gtest/gtest.h>

#include <limits>
#include <vector>

#include "kernels/cuda/conv2d_plan.h"

namespace lockstep::cuda {
namespace {

constexpr std::int64_t kBroken = -1;  // a plan that cannot be built
constexpr std::int64_t kLimit = 100;  // bytes
constexpr std::size_t kNothing = std::numeric_limits<std::size_t>::max();

struct Choice {
  std::size_t plan;
  std::vector<std::size_t> tried;
};

/// The choice among plans with these workspaces, in bytes; the first `n_compared` are compared.
Choice choice(const std::vector<std::int64_t>& workspaces, std::size_t n_compared = 3) {
  Choice result{};
  const auto workspace_of = [&](std::size_t i) -> std::optional<std::int64_t> {
    result.tried.push_back(i);
    if (workspaces[i] == kBroken) return {};
    return workspaces[i];
  };
  result.plan = plan_with_least_workspace(workspaces.size(), n_compared, kLimit, workspace_of).value_or(kNothing);
  return result;
}

TEST(CudaPlan, TheFirstPlansAreComparedByTheirWorkspace) {
  const Choice chosen = choice({50, 20, 30, 0});
  EXPECT_EQ(chosen.plan, 1u);
  EXPECT_EQ(chosen.tried, (std::vector<std::size_t>{0, 1, 2}));
  EXPECT_EQ(choice({20, 20, 20}).plan, 0u) << "cuDNN's ranking decides between equal workspaces";
  EXPECT_EQ(choice({50, 20, 30}, 1).plan, 0u);
  EXPECT_EQ(choice({50}).plan, 0u);
}

TEST(CudaPlan, PlansThatCannotBeBuiltDoNotCount) {
  const Choice chosen = choice({kBroken, 50, kBroken, 20, 30, 0});
  EXPECT_EQ(chosen.plan, 3u);
  EXPECT_EQ(chosen.tried, (std::vector<std::size_t>{0, 1, 2, 3, 4}));
  EXPECT_EQ(choice({kBroken, kBroken}).plan, kNothing);
  EXPECT_EQ(choice({}).plan, kNothing);
}

TEST(CudaPlan, LargeWorkspacesAreALastResort) {
  EXPECT_EQ(choice({300, 200, 400, 500, 90, 10}).plan, 4u);
  EXPECT_EQ(choice({300, 200, 400}).plan, 1u);
  EXPECT_EQ(choice({kLimit, kBroken, 300, 400}).plan, 0u);
}

}  // namespace
}  // namespace lockstep::cuda

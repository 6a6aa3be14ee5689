#include "graph/memory_plan.h"

#include <gtest/gtest.h>

#include <random>

namespace lockstep::graph {
namespace {

TEST(MemoryPlan, SharesPlacesOfTensorsThatNeverLiveTogether) {
  MemoryPlan plan;
  const TensorId a = plan.add("a", 1000), b = plan.add("b", 1000), c = plan.add("c", 1000);
  plan.use(a, 0);
  plan.use(a, 1);
  plan.use(b, 1);
  plan.use(b, 2);
  plan.use(c, 2);
  plan.place();
  EXPECT_EQ(plan.info(a).offset, plan.info(c).offset);
  EXPECT_NE(plan.info(a).offset, plan.info(b).offset);
  EXPECT_EQ(plan.size_bytes(), 2048u);
  EXPECT_EQ(plan.size_bytes_without_reuse(), 3072u);
}

TEST(MemoryPlan, PersistentTensorsShareWithNobody) {
  MemoryPlan plan;
  const TensorId a = plan.add("a", 64, true), b = plan.add("b", 64);
  plan.use(b, 5);
  plan.place();
  EXPECT_NE(plan.info(a).offset, plan.info(b).offset);
}

TEST(MemoryPlan, NeverOverlapsAndNeverExceedsTheSum) {
  std::mt19937 random(7);
  for (int round = 0; round < 50; ++round) {
    MemoryPlan plan;
    for (int i = 0; i < 60; ++i) {
      const TensorId t = plan.add("t", random() % 5000 + 1, random() % 20 == 0);
      const int first = static_cast<int>(random() % 100);
      plan.use(t, first);
      plan.use(t, first + static_cast<int>(random() % 30));
    }
    plan.place();
    const auto& tensors = plan.tensors();
    std::size_t alive_at_once = 0;
    for (int moment = 0; moment < 130; ++moment) {
      std::size_t alive = 0;
      for (const TensorInfo& t : tensors)
        if (t.persistent || (t.first_use <= moment && moment <= t.last_use)) alive += aligned(t.size_bytes);
      alive_at_once = std::max(alive_at_once, alive);
    }
    EXPECT_GE(plan.size_bytes(), alive_at_once);
    EXPECT_LE(plan.size_bytes(), plan.size_bytes_without_reuse());
    for (std::size_t i = 0; i < tensors.size(); ++i)
      for (std::size_t j = 0; j < i; ++j) {
        const TensorInfo &a = tensors[i], &b = tensors[j];
        const bool together = a.persistent || b.persistent || (a.first_use <= b.last_use && b.first_use <= a.last_use);
        const bool apart = a.offset + a.size_bytes <= b.offset || b.offset + b.size_bytes <= a.offset;
        EXPECT_TRUE(!together || apart);
      }
  }
}

}  // namespace
}  // namespace lockstep::graph

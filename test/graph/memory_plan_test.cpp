#include "graph/memory_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "lockstep/error.h"

namespace lockstep::graph {
namespace {

TEST(MemoryPlan, ReusesMemoryOfTensorsThatAreNeverAliveTogether) {
  MemoryPlan plan;
  const TensorId a = plan.add("a", 1000), b = plan.add("b", 1000), c = plan.add("c", 1000);
  plan.access(a, 0, Access::write);
  plan.access(a, 1, Access::read);
  plan.access(b, 1, Access::write);
  plan.access(b, 2, Access::read);
  plan.access(c, 2, Access::write);
  plan.place();
  EXPECT_EQ(plan.info(a).offset, plan.info(c).offset);
  EXPECT_NE(plan.info(a).offset, plan.info(b).offset);
  EXPECT_EQ(plan.size_bytes(), 2048u);
  EXPECT_EQ(plan.size_bytes_without_reuse(), 3072u);
}

TEST(MemoryPlan, ATensorThatIsWrittenAgainNeedsNoMemoryInBetween) {
  MemoryPlan plan;
  const TensorId a = plan.add("a", 1000), b = plan.add("b", 1000);
  plan.access(a, 0, Access::write);
  plan.access(a, 1, Access::read);
  plan.access(b, 2, Access::write);
  plan.access(b, 3, Access::update);
  plan.access(a, 4, Access::write);
  plan.access(a, 6, Access::read);
  plan.place();
  ASSERT_EQ(plan.info(a).live.size(), 2u);
  EXPECT_EQ(plan.info(a).live[0].last, 1);
  EXPECT_EQ(plan.info(a).live[1].first, 4);
  EXPECT_EQ(plan.info(b).live.size(), 1u);
  EXPECT_EQ(plan.info(a).offset, plan.info(b).offset);
}

TEST(MemoryPlan, AnUpdateKeepsATensorAlive) {
  MemoryPlan plan;
  const TensorId a = plan.add("a", 1000), b = plan.add("b", 1000);
  plan.access(a, 0, Access::write);
  plan.access(b, 1, Access::write);
  plan.access(a, 2, Access::update);
  plan.place();
  EXPECT_NE(plan.info(a).offset, plan.info(b).offset);
}

TEST(MemoryPlan, ATensorThatIsReadAndWrittenAtOnePositionStaysAlive) {
  MemoryPlan plan;
  const TensorId a = plan.add("a", 1000);
  plan.access(a, 0, Access::write);
  plan.access(a, 3, Access::read);
  plan.access(a, 3, Access::write);
  plan.access(a, 5, Access::read);
  ASSERT_EQ(plan.info(a).live.size(), 1u);
  EXPECT_EQ(plan.info(a).live[0].last, 5);
}

TEST(MemoryPlan, RejectsReadingBeforeWriting) {
  MemoryPlan plan;
  const TensorId a = plan.add("a", 64), kept = plan.add("kept", 64, true);
  EXPECT_THROW(plan.access(a, 0, Access::read), Error);
  EXPECT_NO_THROW(plan.access(kept, 0, Access::read));
}

TEST(MemoryPlan, PersistentTensorsDoNotShareMemory) {
  MemoryPlan plan;
  const TensorId a = plan.add("a", 64, true), b = plan.add("b", 64);
  plan.access(b, 5, Access::write);
  plan.place();
  EXPECT_NE(plan.info(a).offset, plan.info(b).offset);
}

TEST(MemoryPlan, NeverOverlapsAndNeverExceedsTheSum) {
  std::mt19937 random(7);
  for (int round = 0; round < 50; ++round) {
    MemoryPlan plan;
    for (int i = 0; i < 60; ++i) {
      const TensorId t = plan.add("t", random() % 5000 + 1, random() % 20 == 0);
      int position = static_cast<int>(random() % 60);
      for (std::size_t interval = 0; interval <= random() % 3; ++interval) {
        plan.access(t, position, Access::write);
        plan.access(t, position += static_cast<int>(random() % 15), Access::read);
        position += static_cast<int>(random() % 10) + 1;
      }
    }
    plan.place();
    const auto& tensors = plan.tensors();
    std::size_t alive_at_once = 0;
    const auto is_alive = [](const TensorInfo& t, int position) {
      return t.persistent || std::ranges::any_of(t.live, [&](const LiveInterval& interval) {
               return interval.first <= position && position <= interval.last;
             });
    };
    for (int position = 0; position < 140; ++position) {
      std::size_t alive = 0;
      for (const TensorInfo& t : tensors)
        if (is_alive(t, position)) alive += aligned(t.size_bytes);
      alive_at_once = std::max(alive_at_once, alive);
    }
    EXPECT_GE(plan.size_bytes(), alive_at_once);
    EXPECT_LE(plan.size_bytes(), plan.size_bytes_without_reuse());
    for (std::size_t i = 0; i < tensors.size(); ++i)
      for (std::size_t j = 0; j < i; ++j) {
        const TensorInfo &a = tensors[i], &b = tensors[j];
        bool together = a.persistent || b.persistent;
        for (int position = 0; position < 140; ++position) together |= is_alive(a, position) && is_alive(b, position);
        const bool apart = a.offset + a.size_bytes <= b.offset || b.offset + b.size_bytes <= a.offset;
        EXPECT_TRUE(!together || apart);
      }
  }
}

}  // namespace
}  // namespace lockstep::graph

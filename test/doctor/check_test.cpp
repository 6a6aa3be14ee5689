// The table of checks: passes of the same check are merged, and failures are listed rank by rank.
#include "doctor/check.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

namespace lockstep::doctor {
namespace {

Check rate(int rank, double value, Status status = Status::pass) {
  return {.name = "matmul fp32",
          .scope = rank_name(rank, "node1"),
          .status = status,
          .value = fmt::format("{} TFLOP/s", value),
          .expected = "at least 1 TFLOP/s",
          .remedy = status == Status::pass ? "" : "Leave it out.",
          .number = value,
          .unit = "TFLOP/s"};
}

TEST(Report, MergesPassesOfTheSameCheck) {
  const Report report{.checks = {rate(0, 1.5), rate(1, 0.5, Status::fail), rate(2, 2)}, .slowest = {}, .notes = {}};
  const std::string text = report.text();
  EXPECT_NE(text.find("pass     matmul fp32  2 ranks          1.5 to 2 TFLOP/s"), std::string::npos) << text;
  EXPECT_NE(text.find("fail     matmul fp32  rank 1 on node1  0.5 TFLOP/s"), std::string::npos) << text;
  EXPECT_NE(text.find("         remedy: Leave it out.\n"), std::string::npos) << text;
  EXPECT_NE(text.find("3 checks: 2 passed, 0 warned, 1 failed, 0 unknown\n"), std::string::npos) << text;
  EXPECT_TRUE(report.has_failed());
}

TEST(Report, DoesNotFailForWarningsAndUnknowns) {
  const Report report{.checks = {rate(0, 1, Status::warn), rate(1, 1, Status::unknown)}, .slowest = {}, .notes = {}};
  EXPECT_FALSE(report.has_failed());
  EXPECT_TRUE(report.json()["passed"]);
}

TEST(Report, NamesTheSlowestRank) {
  const Report report{.checks = {},
                      .slowest = SlowestRank{.rank = 3, .host = "node2", .what = "matmul fp32", .slower = 0.314},
                      .notes = {}};
  EXPECT_NE(report.text().find("The slowest rank is rank 3 on node2: its matmul fp32 is 31 % slower than the median"),
            std::string::npos)
      << report.text();
  EXPECT_EQ(report.json()["slowest_rank"]["rank"], 3);
}

TEST(Median, IsTheMiddle) {
  EXPECT_DOUBLE_EQ(median({3, 1, 2}), 2);
  EXPECT_DOUBLE_EQ(median({4, 1, 2, 3}), 2.5);
  EXPECT_DOUBLE_EQ(median({}), 0);
}

}  // namespace
}  // namespace lockstep::doctor

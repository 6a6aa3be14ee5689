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

TEST(Report, EndsWithWhatIsSlowestOfRanksAndLinks) {
  const auto link = [](const char* name, double times) {
    return Check{.name = name, .scope = "rank 0 on node1 and rank 2 on node2", .times_slower = times};
  };
  Report report{.checks = {rate(0, 1), link("all-reduce 51 MB", 100), link("pair between nodes", 60)},
                .slowest = SlowestRank{.rank = 3, .host = "node2", .what = "matmul fp32", .slower = 0.24},
                .notes = {}};
  ASSERT_EQ(report.slowest_sentences().size(), 2U);
  EXPECT_NE(report.slowest_sentences()[1].find("rank 2 on node2 (pair between nodes): it is 60 times"),
            std::string::npos)
      << report.text();
  EXPECT_EQ(report.json()["slowest_link"]["times_slower"], 60);
  report.checks[1].times_slower = report.checks[2].times_slower = 2;
  report.slowest->slower = 0.9;
  EXPECT_NE(report.slowest_sentences()[1].find("rank 3"), std::string::npos);
  report.checks.resize(1);
  EXPECT_EQ(report.slowest_sentences().size(), 1U);
  EXPECT_FALSE(report.json().contains("slowest_link"));
}

}  // namespace
}  // namespace lockstep::doctor

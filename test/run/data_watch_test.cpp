// The report on steps that wait for data: when it is made, which rank it names, and what it advises. Finding the rank
// for which the others wait.
#include "run/data_watch.h"

#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <vector>

namespace lockstep::run {
namespace {

using std::chrono::seconds;

DataSource source() {
  return {.readers = 8, .cores = 16, .samples = "images", .faster = {"--store decoded", "a smaller --short-side"}};
}

/// Steps that waited `wait_seconds` of `seconds` while `busy` readers were working, each reading 1,150 samples/s.
DataUsage usage(double seconds, double wait_seconds, double busy = 8) {
  const double read_seconds = busy * seconds;
  return {.seconds = seconds,
          .wait_seconds = wait_seconds,
          .busy_seconds = read_seconds,
          .read_seconds = read_seconds,
          .n_samples = 1150 * read_seconds};
}

TEST(DataReport, TellsTheShareTheReadersAndWhatWouldHelp) {
  EXPECT_EQ(
      data_report(usage(100, 38), source()),
      "data: 38 % of the time; 8 of 8 readers busy, 1,150 images/s per reader; more readers, --store decoded or a "
      "smaller --short-side would help");
}

TEST(DataReport, ThereIsNoneIfStepsHardlyWait) {
  EXPECT_EQ(data_report(usage(100, 4.9), source()), "");
  EXPECT_NE(data_report(usage(100, 5.1), source()), "");
}

TEST(DataReport, ThereIsNoneOnLessThanASecond) { EXPECT_EQ(data_report(usage(0.9, 0.9), source()), ""); }

TEST(DataReport, MoreReadersThanCoresAreNotAdvised) {
  DataSource busy = source();
  busy.cores = 8;
  busy.faster.clear();
  const std::string report = data_report(usage(100, 38), busy);
  EXPECT_TRUE(report.ends_with("; more cores per rank would help")) << report;
}

TEST(DataReport, IdleReadersNeedRoomToReadAhead) {
  const std::string report = data_report(usage(100, 38, 3), source());
  EXPECT_TRUE(report.ends_with("; 3 of 8 readers busy, 1,150 images/s per reader; a larger data.prefetch would help"))
      << report;
}

TEST(DataReport, OneReaderOfASlowSet) {
  const DataUsage slow{.seconds = 10, .wait_seconds = 9.96, .busy_seconds = 10.5, .read_seconds = 10, .n_samples = 23};
  EXPECT_EQ(data_report(slow, {.readers = 1, .cores = 2, .faster = {}}),
            "data: 100 % of the time; 1 of 1 reader busy, 2 samples/s per reader; more readers would help");
}

TEST(DataWatch, AReportIsDueOnceAMinute) {
  const Clock::time_point begin{};
  DataWatch watch(source(), begin);
  std::vector<int> due;
  for (const int at : {1, 59, 60, 61, 119, 125, 184, 185, 400, 401})
    if (watch.is_due(begin + seconds(at))) due.push_back(at);
  EXPECT_EQ(due, (std::vector{60, 125, 185, 400}));
}

TEST(DataWatch, ReportsOnTheTimeSinceTheLastReport) {
  DataWatch watch(source(), Clock::time_point{});
  const auto report = [&](double time, double wait) {
    watch.update(std::vector{usage(time, wait)});
    return watch.report();
  };
  watch.update(std::vector{usage(30, 0)});
  EXPECT_TRUE(report(60, 60).starts_with("data: 100 % of the time; ")) << "an update is no report";
  EXPECT_EQ(report(125, 61), "") << "1 of the 65 seconds since the last report";
  EXPECT_TRUE(report(185, 91).starts_with("data: 50 % of the time; "));
  EXPECT_TRUE(watch.summary().starts_with("data: 49 % of the time; "));
  EXPECT_DOUBLE_EQ(watch.figures().wait_share, 91.0 / 185);
  EXPECT_DOUBLE_EQ(watch.figures().busy_readers, 8);
  EXPECT_DOUBLE_EQ(watch.figures().rate_per_reader, 1150);
}

TEST(DataWatch, TheReportIsAboutTheRankThatWaitsMost) {
  DataWatch watch(source(), Clock::time_point{});
  watch.update(std::vector{usage(10, 1), usage(10, 7, 5), usage(10, 0)});
  EXPECT_TRUE(watch.summary().starts_with("data: 70 % of the time; 5 of 8 readers busy, ")) << watch.summary();
  EXPECT_DOUBLE_EQ(watch.figures().busy_readers, 5);
}

TEST(DataWatch, TakesTheLatestAdvice) {
  DataWatch watch(source(), Clock::time_point{});
  watch.update(std::vector{usage(10, 5)});
  watch.set_faster({"no data.color_jitter"});
  EXPECT_TRUE(watch.summary().ends_with("; more readers or no data.color_jitter would help")) << watch.summary();
}

TEST(DataWatch, HasNothingToSayBeforeTheFirstStep) {
  DataWatch watch(source(), Clock::time_point{});
  EXPECT_EQ(watch.summary(), "");
  EXPECT_EQ(watch.report(), "");
  EXPECT_EQ(watch.figures().wait_share, 0);
}

TEST(SlowRank, TheRankThatWaitsLeastIsNamed) {
  const std::vector<double> waits = {0.5, 0.4, 0.05, 0.3};
  const auto slow = find_slow_rank(waits, 0.2);
  ASSERT_TRUE(slow);
  EXPECT_EQ(slow->rank, 2);
  EXPECT_NEAR(slow->waited_for, (0.45 + 0.35 + 0.25) / 3, 1e-12);
  EXPECT_FALSE(find_slow_rank(waits, 0.36));
}

TEST(SlowRank, NoneIsNamedIfAllWaitEqually) {
  EXPECT_FALSE(find_slow_rank(std::vector<double>{0.6, 0.6, 0.55}, 0.2));  // the cause is the network
  EXPECT_FALSE(find_slow_rank(std::vector<double>{0.9}, 0.2));
}

}  // namespace
}  // namespace lockstep::run

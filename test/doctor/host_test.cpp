// The verdicts on processors, from numbers, and a process that burns time beside this one.
#include "doctor/host.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>

#include "comm/world.h"
#include "test/doctor/support.h"

namespace lockstep::doctor {
namespace {

using Verdicts = std::vector<std::string>;

HostFacts on(std::vector<int> processors, int n_threads, int of = 8) {
  return {.processors = std::move(processors), .n_threads = n_threads, .n_processors = of, .huge_pages = "madvise"};
}

TEST(HostChecks, PassForRanksWithProcessorsOfTheirOwn) {
  const auto checks = check_hosts(places_on(1, 2), {on({0, 1}, 2, 4), on({2, 3}, 2, 4)});
  for (const Check& check : checks) EXPECT_EQ(check.status, Status::pass) << check.name;
  EXPECT_EQ(without_remedy(checks), Verdicts());
}
TEST(HostChecks, PassForRanksThatShareProcessorsEvenly) {
  const auto checks = check_hosts(places_on(1, 2), {on({0, 1, 2, 3}, 2, 4), on({0, 1, 2, 3}, 2, 4)});
  EXPECT_EQ(verdicts(checks, "CPU binding"), Verdicts({"pass node1"}));
}
TEST(HostChecks, FailForTwoRanksOnOneProcessor) {
  const auto checks = check_hosts(places_on(1, 2), {on({0}, 1), on({0}, 1)});
  EXPECT_EQ(verdicts(checks, "CPU binding"), Verdicts({"fail node1"}));
  EXPECT_EQ(without_remedy(checks), Verdicts());
}
TEST(HostChecks, WarnForOneProcessorOfMany) {
  const auto checks = check_hosts(places_on(1, 2), {on({0}, 1), on({1}, 1)});
  EXPECT_EQ(verdicts(checks, "CPU binding"), Verdicts({"warn node1"}));
}
TEST(HostChecks, FailForOtherLoadOnBusyProcessors) {
  HostFacts first = on({0, 1}, 2, 2);
  first.others = {{.pid = 7, .name = "stress", .cores = 0.9, .processor = 1}};
  const auto checks = check_hosts(places_on(1, 1), {first});
  EXPECT_EQ(verdicts(checks, "other load"), Verdicts({"fail node1"}));
  EXPECT_NE(checks[1].value.find("stress (process 7) 0.90"), std::string::npos) << checks[1].value;
}
TEST(HostChecks, WarnForOtherLoadBesideIdleProcessors) {
  HostFacts first = on({0, 1, 2, 3}, 2, 4);
  first.others = {{.pid = 7, .name = "stress", .cores = 0.9, .processor = 3}};
  EXPECT_EQ(verdicts(check_hosts(places_on(1, 1), {first}), "other load"), Verdicts({"warn node1"}));
}
TEST(HostChecks, IgnoreLoadOnProcessorsOfOthersAndDaemons) {
  HostFacts first = on({0, 1}, 2, 4);
  first.others = {{.pid = 7, .name = "stress", .cores = 0.9, .processor = 3},
                  {.pid = 8, .name = "daemon", .cores = 0.1, .processor = 0}};
  EXPECT_EQ(verdicts(check_hosts(places_on(1, 1), {first}), "other load"), Verdicts({"pass node1"}));
}
TEST(HostChecks, JudgeHugePages) {
  const auto verdict = [](const std::string& mode) {
    HostFacts first = on({0, 1}, 2, 2);
    first.huge_pages = mode;
    return verdicts(check_hosts(places_on(1, 1), {first}), "huge pages")[0];
  };
  EXPECT_EQ(verdict("always"), "pass node1");
  EXPECT_EQ(verdict("never"), "warn node1");
  EXPECT_EQ(verdict(""), "unknown node1");
  EXPECT_EQ(selected_word("always [madvise] never\n"), "madvise");
  EXPECT_EQ(selected_word("nonsense"), "");
}

TEST(MeasuredHost, NamesAProcessThatBurnsTime) {
  const pid_t child = ::fork();
  if (child == 0)
    while (true) (void)::getppid();
  ASSERT_GT(child, 0);
  const auto world = comm::single_world();
  const HostFacts facts = measure_host(*world);
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  EXPECT_FALSE(facts.processors.empty());
  EXPECT_TRUE(std::ranges::any_of(facts.others, [&](const OtherProcess& other) { return other.pid == child; }));
  EXPECT_FALSE(std::ranges::any_of(facts.others, [](const OtherProcess& other) { return other.pid == ::getpid(); }));
}

}  // namespace
}  // namespace lockstep::doctor

// The verdicts on processors, derived from numbers, and a process that uses processor time next to this one.
#include "doctor/host.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <thread>

#include "base/process.h"
#include "comm/world.h"
#include "test/doctor/support.h"

namespace fs = std::filesystem;

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
TEST(HostChecks, WarnForARankOnAnotherSocketThanItsGpu) {
  HostFacts first = on({0, 1}, 2, 4), second = on({2, 3}, 2, 4);
  first.near_device = second.near_device = {0, 1};
  const auto checks = check_hosts(places_on(1, 2), {first, second});
  EXPECT_EQ(verdicts(checks, "GPU affinity"), Verdicts({"pass rank 0 on node1", "warn rank 1 on node1"}));
  EXPECT_EQ(without_remedy(checks), Verdicts());
  second.near_device = {3};  // unbound ranks may run there too
  EXPECT_EQ(verdicts(check_hosts(places_on(1, 2), {first, second}), "GPU affinity")[1], "pass rank 1 on node1");
  second.near_device = {};
  EXPECT_EQ(verdicts(check_hosts(places_on(1, 2), {first, second}), "GPU affinity").size(), 1u);
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

TEST(MeasuredHost, ReadsTheProcessorsNearADevice) {
  EXPECT_EQ(processors_in("0-2,8\n"), (std::vector<int>{0, 1, 2, 8}));
  EXPECT_EQ(processors_in("8,0-1"), (std::vector<int>{0, 1, 8}));
  for (const char* wrong : {"", "\n", "x", "3-1", "0-99999999", "-1"})
    EXPECT_TRUE(processors_in(wrong).empty()) << wrong;
  const fs::path folder = fs::temp_directory_path() / ("near." + std::to_string(::getpid()));
  fs::create_directories(folder / "0000:3b:00.0");
  std::ofstream(folder / "0000:3b:00.0" / "local_cpulist") << "16-17\n";
  EXPECT_EQ(processors_near("0000:3B:00.0", folder), (std::vector<int>{16, 17}));
  EXPECT_TRUE(processors_near("0000:3C:00.0", folder).empty());
  EXPECT_TRUE(processors_near("", folder).empty());
  fs::remove_all(folder);
}

TEST(Processors, NearADeviceAreUsedIfTheySuffice) {
  const std::vector<int> all = usable_processors();
  if (all.size() < 2) GTEST_SKIP() << "one processor";
  const fs::path folder = fs::temp_directory_path() / ("stays." + std::to_string(::getpid()));
  fs::create_directories(folder / "0000:3b:00.0");
  std::ofstream(folder / "0000:3b:00.0" / "local_cpulist") << all[1] << "," << all.back() + 1 << "\n";
  std::vector<int> of_reader;
  std::thread([&] {
    stay_near("", 1, folder);
    stay_near("0000:3c:00.0", 1, folder);
    stay_near("0000:3b:00.0", 2, folder);
    EXPECT_EQ(usable_processors(), all) << "too few processors are near the device";
    stay_near("0000:3b:00.0", 1, folder);
    std::thread([&] { of_reader = usable_processors(); }).join();
  }).join();
  EXPECT_EQ(of_reader, std::vector{all[1]});
  EXPECT_EQ(usable_processors(), all) << "of another thread";
  fs::remove_all(folder);
}

TEST(MeasuredHost, NamesAProcessThatBurnsTime) {
  const pid_t child = ::fork();
  if (child == 0)
    while (true) (void)::getppid();
  ASSERT_GT(child, 0);
  const auto world = comm::single_world();
  const HostFacts facts = measure_host(*world, "");
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  EXPECT_FALSE(facts.processors.empty());
  EXPECT_TRUE(std::ranges::any_of(facts.others, [&](const OtherProcess& other) { return other.pid == child; }));
  EXPECT_FALSE(std::ranges::any_of(facts.others, [](const OtherProcess& other) { return other.pid == ::getpid(); }));
}

}  // namespace
}  // namespace lockstep::doctor

// The content of standard error and RUN/log.txt for rank 0, for another rank, and with log.ranks: all.
#include "lockstep/log.h"

#include <gtest/gtest.h>
#include <pty.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <functional>
#include <regex>

#include "base/file.h"
#include "lockstep/error.h"
#include "test/support/program.h"

namespace lockstep {
namespace {

const std::string kTime = R"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d \| )";

bool matches(const std::string& text, const std::string& pattern) {
  return std::regex_match(text, std::regex(pattern));
}

std::string standard_error_of(const std::function<void()>& action) {
  ::testing::internal::CaptureStderr();
  action();
  return ::testing::internal::GetCapturedStderr();
}

TEST(Log, RankZeroPrintsPlainLines) {
  log::configure(0, 1, "node1", false);
  const std::string text = standard_error_of([] { log::info("{} steps", 12); });
  EXPECT_TRUE(matches(text, kTime + "12 steps\n")) << text;
}

TEST(Log, BracesInAFinishedLineAreKept) {
  log::configure(0, 1, "node1", false);
  const std::string text = standard_error_of([] { log::write(log::Level::info, "name: step-{step} {}"); });
  EXPECT_TRUE(matches(text, kTime + R"(name: step-\{step\} \{\}\n)")) << text;
}

TEST(Log, OtherRanksPrintOnlyErrors) {
  log::configure(1, 4, "node2", false);
  const std::string text = standard_error_of([] {
    log::info("hidden");
    log::warning("hidden");
    log::error("disk full");
  });
  EXPECT_TRUE(matches(text, kTime + R"(\[RANK: 1 node2\] error: disk full\n)")) << text;
}

TEST(Log, ErrorsOfRankZeroNameItToo) {
  log::configure(0, 4, "node1", false);
  const std::string text = standard_error_of([] {
    log::warning("one core");
    log::error("disk full");
  });
  EXPECT_TRUE(matches(text, kTime + R"(warning: one core\n)" + kTime + R"(\[RANK: 0 node1\] error: disk full\n)"))
      << text;
}

TEST(Log, AllRanksNameThemselves) {
  log::configure(1, 2, "node2", true);
  const std::string text = standard_error_of([] { log::info("step 3"); });
  EXPECT_TRUE(matches(text, kTime + R"(\[RANK: 1 node2\] step 3\n)")) << text;
}

TEST(Log, AppendsToTheFile) {
  const std::string path = std::filesystem::temp_directory_path() / fmt::format("lockstep_log_{}.txt", ::getpid());
  replace_file(path, "before\n");
  log::configure(0, 1, "node1", false);
  log::open_file("/dev/null");  // lines logged before the first file is opened are kept for it: earlier tests' lines
  log::open_file(path);
  const std::string text = standard_error_of([] { log::info("after"); });
  EXPECT_EQ(read_file(path), "before\n" + text);
  EXPECT_TRUE(matches(text, kTime + "after\n")) << text;
  EXPECT_EQ(standard_error_of([] { log::write_to_file(log::Level::error, "only in the file"); }), "");
  EXPECT_TRUE(matches(read_file(path), "before\n" + kTime + "after\n" + kTime + "error: only in the file\n"));
  std::filesystem::remove(path);
  EXPECT_THROW(log::open_file("/dev/null/log.txt"), Error);
}

TEST(Log, WritesNoProgressLineToAFile) {
  EXPECT_EQ(standard_error_of([] { log::set_progress_line("50 %"); }), "");
}

// A child whose standard error is a terminal: a new line erases the progress line, which is then redrawn below it.
TEST(Log, ProgressLineStaysLastOnATerminal) {
  int terminal = -1;
  const pid_t child = ::forkpty(&terminal, nullptr, nullptr, nullptr);
  ASSERT_GE(child, 0);
  if (child == 0) {
    ::setenv("TERM", "xterm", 1);
    ::unsetenv("NO_COLOR");
    ::execl("/proc/self/exe", "base_test", "--progress-child", nullptr);
    ::_exit(1);
  }
  std::string text;
  char buffer[256];
  for (ssize_t n = 0; (n = ::read(terminal, buffer, sizeof buffer)) > 0;)
    text.append(buffer, static_cast<std::size_t>(n));
  int status = 0;
  ::waitpid(child, &status, 0);
  ::close(terminal);
  EXPECT_EQ(status, 0);
  const std::string erase = "\r\033\\[K";
  EXPECT_TRUE(matches(text, erase + "50 %" + erase + kTime + "line\r\n50 %" + erase)) << ::testing::PrintToString(text);
}

int progress_child(int, char**) {
  log::configure(0, 1, "node1", false);
  log::set_progress_line("50 %");
  log::set_progress_line("50 %");  // unchanged: not redrawn
  log::info("line");
  log::set_progress_line("");
  return 0;
}

const test::Role role("progress-child", progress_child);

}  // namespace
}  // namespace lockstep

// The lock of a run directory: which jobs are rejected, whose lock is taken over, and what is left at the end.
#include "run/run_lock.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "comm/world.h"
#include "lockstep/error.h"

namespace lockstep::run {
namespace {

namespace fs = std::filesystem;
using Seconds = std::chrono::duration<double>;

class RunLockTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const char* parent = std::getenv("TMPDIR");
    run_ = fmt::format("{}/run_lock_test.{}", parent != nullptr ? parent : "/tmp", ::getpid());
    fs::create_directories(run_);
    ::unsetenv("SLURM_JOB_ID");
    ::unsetenv("SLURM_RESTART_COUNT");
  }
  void TearDown() override { fs::remove_all(run_); }

  /// Empty if the lock was obtained, otherwise the message.
  std::string refusal() {
    try {
      const RunLock lock(run_, *world_, {.heartbeat = Seconds(0.05), .stale = Seconds(0.5)});
      return "";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::run_locked);
      return error.what();
    }
  }
  void write_lock(const std::string& host, long pid, const std::string& job, int restarts, int heartbeat) {
    std::ofstream(run_ + "/lock.new") << fmt::format(
        "host {}\npid {}\nprocess_start 1\nslurm_job {}\nslurm_restarts {}\nsince_unix 1700000000\nheartbeat {:012}\n",
        host, pid, job, restarts, heartbeat);
    fs::rename(run_ + "/lock.new", run_ + "/lock");
  }
  static std::string this_host() {
    char name[256] = "";
    ::gethostname(name, sizeof name - 1);
    return name;
  }

  std::unique_ptr<World> world_ = comm::single_world();
  std::string run_;
};

TEST_F(RunLockTest, ASecondJobIsRejectedAndTheHolderIsNamed) {
  {
    const RunLock lock(run_, *world_);
    EXPECT_TRUE(fs::exists(run_ + "/lock"));
    const std::string sentence = refusal();
    EXPECT_NE(sentence.find(fmt::format("is in use by process {} on {}", ::getpid(), this_host())), std::string::npos)
        << sentence;
    EXPECT_NO_THROW(lock.require_held());
  }
  EXPECT_FALSE(fs::exists(run_));  // nothing was written
  EXPECT_EQ(refusal(), "");
}

TEST_F(RunLockTest, ADirectoryWithContentStays) {
  std::ofstream(run_ + "/config.yaml") << "x";
  EXPECT_EQ(refusal(), "");
  EXPECT_TRUE(fs::exists(run_ + "/config.yaml"));
  EXPECT_FALSE(fs::exists(run_ + "/lock"));
}

TEST_F(RunLockTest, ALockOfAnEndedProcessIsTakenOver) {
  write_lock(this_host(), ::getpid(), "-", 0, 3);  // our pid, but another process: it began at another time
  EXPECT_EQ(refusal(), "");
}

TEST_F(RunLockTest, ARestartedSlurmJobTakesOverItsOwnLock) {
  ::setenv("SLURM_JOB_ID", "42", 1);
  ::setenv("SLURM_RESTART_COUNT", "1", 1);
  const auto begin = std::chrono::steady_clock::now();
  write_lock("elsewhere", 77, "42", 0, 3);
  const RunLock lock(run_, *world_, {.heartbeat = Seconds(0.05), .stale = Seconds(1000)});
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(500));
}

TEST_F(RunLockTest, TheHeartbeatDecidesAboutALockOfAnotherHost) {
  write_lock("elsewhere", 77, "42", 0, 0);
  std::atomic<bool> ends = false;
  std::thread other([&] {
    for (int beat = 1; !ends; ++beat) {
      write_lock("elsewhere", 77, "42", 0, beat);
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
  });
  const std::string sentence = refusal();
  ends = true;
  other.join();
  EXPECT_NE(sentence.find("process 77 on elsewhere (Slurm job 42)"), std::string::npos) << sentence;
  const auto begin = std::chrono::steady_clock::now();
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(refusal(), "");
  const std::string output = ::testing::internal::GetCapturedStderr();
  EXPECT_GE(std::chrono::steady_clock::now() - begin, Seconds(0.5));
  EXPECT_NE(output.find("is in use by process 77 on elsewhere (Slurm job 42)"), std::string::npos) << output;
  EXPECT_NE(output.find("waiting up to 0.5 s for its heartbeat"), std::string::npos) << output;
  EXPECT_NE(output.find("was left locked by process 77 on elsewhere"), std::string::npos) << output;
}

TEST_F(RunLockTest, AnUnreadableLockIsTakenOverToo) {
  std::ofstream(run_ + "/lock") << "cut";
  EXPECT_EQ(refusal(), "");
  std::ofstream(run_ + "/lock").close();
  EXPECT_EQ(refusal(), "");
}

TEST_F(RunLockTest, AJobDetectsThatItsLockWasTakenOver) {
  const RunLock lock(run_, *world_);
  write_lock("elsewhere", 77, "-", 0, 0);
  EXPECT_THROW(lock.require_held(), Error);
}

}  // namespace
}  // namespace lockstep::run

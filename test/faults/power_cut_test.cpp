// timeout: 240
// sanitizers: no
// environment: LD_PRELOAD={test}/faults/fault_injection.so
// A save of two ranks is killed before each of its system calls in turn, or the call fails because of a full disk, a
// quota, an I/O error or a read-only file system. In each case the newest checkpoint with a final name is intact, and
// the next save succeeds.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <filesystem>

#include "checkpoint/background_saver.h"
#include "test/checkpoint/support.h"

namespace lockstep::checkpoint::test {
namespace {

namespace fs = std::filesystem;

/// Saves like a run: two threads act as ranks and write the file, the link is updated, and older files are pruned.
/// Returns the error of each rank.
std::vector<std::string> save_like_run(const std::string& directory, std::int64_t step) {
  const std::string path = fmt::format("{}/step-{}.h5", directory, step);
  std::vector<std::string> errors(2);
  on_ranks(2, [&](World& world) {
    BackgroundSaver saver(small_model(), world);
    saver.start(path, small_state(step), {.before = {}, .after = [&] {
                                            set_link(directory, "latest", path);
                                            KnownFiles known{{path, true}};
                                            prune(directory, {.keep = 2}, known);
                                          }});
    const auto outcome = saver.wait();
    if (outcome.error) errors[static_cast<std::size_t>(world.rank())] = outcome.error->what();
  });
  return errors;
}

/// Saves `step` in a child process in which call number `k` fails with `error`. If the save fails, it saves once more.
/// Returns the status of waitpid().
int save_in_child(const std::string& directory, std::int64_t step, int k, const char* error) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::setenv("FAULT_PATH", directory.c_str(), 1);
    ::setenv("FAULT_FIRST", std::to_string(k).c_str(), 1);
    ::setenv("FAULT_ERROR", error, 1);
    reinterpret_cast<void (*)()>(::dlsym(RTLD_DEFAULT, "fault_reload"))();
    auto errors = save_like_run(directory, step);
    if (errors[0].empty() && errors[1].empty()) ::_exit(0);
    if (errors[0] != errors[1]) ::_exit(4);  // ranks must agree
    if (!newest_first(directory).paths.size()) ::_exit(5);
    errors = save_like_run(directory, step + 1);
    ::_exit(errors[0].empty() ? 3 : 6);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return status;
}

class PowerCut : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_NE(::dlsym(RTLD_DEFAULT, "fault_reload"), nullptr)
        << "LD_PRELOAD must name build/test/faults/fault_injection.so";
    on_ranks(1, [&](World&) { save_like_run(scratch_.path(), 10); });
  }

  /// Every file with a final name is intact, and so is the target of `latest`.
  void expect_intact(std::int64_t at_least, const std::string& when) {
    const Candidates found = newest_first(scratch_.path());
    ASSERT_FALSE(found.paths.empty()) << when;
    EXPECT_EQ(found.n_bad, 0) << when;
    for (const std::string& path : found.paths) EXPECT_TRUE(verify(path).good) << when << ": " << verify(path).sentence;
    EXPECT_GE(verify(found.paths[0]).step, at_least) << when;
    EXPECT_TRUE(verify(scratch_.file("latest")).good) << when;
  }

  ScratchDirectory scratch_;
};

TEST_F(PowerCut, LeavesNewestCheckpointIntactAtEachCall) {
  std::int64_t step = 10;
  int k = 1;
  for (; k < 200; ++k) {
    const std::string when = fmt::format("killed before call {}", k);
    const int status = save_in_child(scratch_.path(), step + 1, k, "KILL");
    if (WIFEXITED(status)) {
      EXPECT_EQ(WEXITSTATUS(status), 0) << when;
      break;
    }
    ASSERT_EQ(WTERMSIG(status), SIGKILL) << when;
    expect_intact(step, when);
    // The next start of the run does this.
    remove_partials(scratch_.path());
    step += 2;
    for (const std::string& error : save_like_run(scratch_.path(), step)) EXPECT_EQ(error, "") << when;
    expect_intact(step, when + ", resumed");
    ASSERT_FALSE(HasFailure());
  }
  EXPECT_GT(k, 20);  // a save makes about 30 calls, so the wrapper was active
  EXPECT_LT(k, 200);
}

TEST_F(PowerCut, LosesNothingOnSystemErrorAtEachCall) {
  constexpr std::array<const char*, 4> kErrors{"ENOSPC", "EDQUOT", "EIO", "EROFS"};
  std::int64_t step = 10;
  int n_failed = 0;
  for (int k = 1; k < 200; ++k) {
    const char* error = kErrors[static_cast<std::size_t>(k) % kErrors.size()];
    const std::string when = fmt::format("{} at call {}", error, k);
    const int status = save_in_child(scratch_.path(), step + 1, k, error);
    ASSERT_TRUE(WIFEXITED(status)) << when;
    if (WEXITSTATUS(status) == 0 && n_failed > 10 && k > 40) break;
    ASSERT_TRUE(WEXITSTATUS(status) == 0 || WEXITSTATUS(status) == 3) << when << ": " << WEXITSTATUS(status);
    n_failed += WEXITSTATUS(status) == 3;
    step += 2;
    expect_intact(step - 1, when);
    ASSERT_FALSE(HasFailure());
  }
  EXPECT_GT(n_failed, 10);
}

// Data that was written survives the death of a process, so the tests above would not detect a missing sync. Here each
// sync fails once. This shows that all syncs are made, and that a file is renamed only after everything in it was
// synced.
TEST_F(PowerCut, SyncsEverythingBeforeRenaming) {
  // The parts of the two ranks, the metadata, and the header; then the directory, after the file and after the link.
  constexpr int kSyncsOfTheFile = 4, kSyncs = kSyncsOfTheFile + 2;
  ::setenv("FAULT_CALLS", "fsync", 1);
  std::int64_t step = 10;
  for (int k = 1; k <= kSyncs + 1; ++k, step += 2) {
    const std::string when = fmt::format("sync {} fails", k);
    const int status = save_in_child(scratch_.path(), step + 1, k, "EIO");
    EXPECT_TRUE(WIFEXITED(status)) << when;
    EXPECT_EQ(WEXITSTATUS(status), k <= kSyncs ? 3 : 0) << when;
    EXPECT_EQ(fs::exists(scratch_.file(fmt::format("step-{}.h5", step + 1))), k > kSyncsOfTheFile) << when;
  }
  ::unsetenv("FAULT_CALLS");
}

}  // namespace
}  // namespace lockstep::checkpoint::test

// A directory of checkpoints: the newest good one by the stored step, what prune() keeps, and links.
#include <gtest/gtest.h>

#include <filesystem>

#include "checkpoint/checkpoint.h"
#include "test/checkpoint/support.h"

namespace lockstep::checkpoint::test {
namespace {

namespace fs = std::filesystem;

std::vector<std::string> names_in(const std::string& directory) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(directory)) names.push_back(entry.path().filename());
  std::ranges::sort(names);
  return names;
}

void flip_last_byte(const std::string& path) {
  std::string bytes = bytes_of_file(path);
  bytes.back() = static_cast<char>(bytes.back() ^ 1);
  write_file(path, bytes);
}

/// The checkpoint that a start would use: the first one whose tensors are valid too.
std::string newest_good(const std::string& directory) {
  for (const std::string& path : newest_first(directory).paths)
    if (verify(path).good) return path;
  return "";
}

void prune_once(const std::string& directory, const Retention& retention) {
  KnownFiles known;
  prune(directory, retention, known);
}

TEST(NewestFirst, OrdersByTheStoredStepAndNamesBadFiles) {
  ScratchDirectory scratch;
  EXPECT_TRUE(newest_first(scratch.path()).paths.empty());
  EXPECT_EQ(newest_first(scratch.file("missing")).n_bad, 0);

  // The order of the names is the opposite of that of the steps.
  for (int i = 1; i <= 5; ++i)
    save_alone(scratch.file(fmt::format("step-{}.h5", 9 - i)), small_model(), small_state(i * 100));
  write_file(scratch.file("empty.h5"), "");
  write_file(scratch.file("foreign.h5"), "\x89HDF\r\n\x1a\n and so on");
  save_alone(scratch.file("no_step.h5"), small_model(), {{"model", "resnet"}});
  write_file(scratch.file("notes.txt"), "LOCKSTEP");
  fs::create_directory(scratch.file("directory.h5"));
  fs::create_symlink("nowhere.h5", scratch.file("dangling.h5"));
  const Candidates candidates = newest_first(scratch.path());
  EXPECT_EQ(candidates.n_bad, 3);
  std::vector<std::string> expected;
  for (int i = 5; i >= 1; --i) expected.push_back(scratch.file(fmt::format("step-{}.h5", 9 - i)));
  EXPECT_EQ(candidates.paths, expected);

  flip_last_byte(scratch.file("step-4.h5"));  // part of a tensor: detected only when the tensor is read
  EXPECT_EQ(newest_first(scratch.path()).n_bad, 3);
  EXPECT_EQ(newest_good(scratch.path()), scratch.file("step-5.h5"));
  write_file(scratch.file("step-5.h5"), bytes_of_file(scratch.file("step-5.h5")).substr(0, 50000));
  EXPECT_EQ(newest_first(scratch.path()).n_bad, 4);
  EXPECT_EQ(newest_good(scratch.path()), scratch.file("step-6.h5"));
  for (const char* name : {"step-6.h5", "step-7.h5", "step-8.h5"}) flip_last_byte(scratch.file(name));
  EXPECT_EQ(newest_good(scratch.path()), "");
}

TEST(NewestFirst, IgnoresAndRemovesFilesOfAnInterruptedSave) {
  ScratchDirectory scratch;
  save_alone(scratch.file("a.h5"), small_model(), small_state(1));
  save_alone(scratch.file("b.h5"), small_model(), small_state(2));
  fs::rename(scratch.file("b.h5"), scratch.file("b.h5.partial"));
  fs::create_symlink("a.h5", scratch.file("latest.partial"));
  EXPECT_EQ(newest_first(scratch.path()).paths, std::vector<std::string>{scratch.file("a.h5")});
  EXPECT_EQ(remove_partials(scratch.path()).size(), 2u);
  EXPECT_EQ(names_in(scratch.path()), std::vector<std::string>{"a.h5"});
  EXPECT_TRUE(remove_partials(scratch.file("missing")).empty());
}

TEST(Prune, KeepsTheNewestAndLinkedCheckpoints) {
  ScratchDirectory scratch;
  for (int i = 1; i <= 6; ++i) save_alone(scratch.file(fmt::format("step-{}.h5", i)), small_model(), small_state(i));
  set_link(scratch.path(), "best", scratch.file("step-2.h5"));
  set_link(scratch.path(), "latest", scratch.file("step-6.h5"));
  write_file(scratch.file("foreign.h5"), "of somebody else");

  prune_once(scratch.path(), {.keep = 0});
  EXPECT_EQ(scratch.n_entries(), 9u);
  prune_once(scratch.path(), {.keep = 3});
  EXPECT_EQ(names_in(scratch.path()), (std::vector<std::string>{"best", "foreign.h5", "latest", "step-2.h5",
                                                                "step-4.h5", "step-5.h5", "step-6.h5"}));
  prune_once(scratch.path(), {.keep = 1});
  EXPECT_EQ(names_in(scratch.path()),
            (std::vector<std::string>{"best", "foreign.h5", "latest", "step-2.h5", "step-6.h5"}));
  prune_once(scratch.path(), {.keep = 10});
  EXPECT_EQ(scratch.n_entries(), 5u);
}

TEST(Prune, KeepsMultiplesOfKeepEvery) {
  ScratchDirectory scratch;
  for (int i = 1; i <= 7; ++i) save_alone(scratch.file(fmt::format("step-{}.h5", i)), small_model(), small_state(i));
  prune_once(scratch.path(), {.keep = 2, .keep_every = 3});
  EXPECT_EQ(names_in(scratch.path()), (std::vector<std::string>{"step-3.h5", "step-6.h5", "step-7.h5"}));
  prune_once(scratch.path(), {.keep = 1, .keep_every = 3});
  EXPECT_EQ(names_in(scratch.path()), (std::vector<std::string>{"step-3.h5", "step-6.h5", "step-7.h5"}));
}

TEST(Prune, DoesNotCountDamagedCheckpoints) {
  ScratchDirectory scratch;
  for (int i = 1; i <= 6; ++i) save_alone(scratch.file(fmt::format("step-{}.h5", i)), small_model(), small_state(i));
  for (const char* name : {"step-3.h5", "step-5.h5", "step-6.h5"}) flip_last_byte(scratch.file(name));
  KnownFiles known;
  ::testing::internal::CaptureStderr();
  prune(scratch.path(), {.keep = 2}, known);
  const std::string output = ::testing::internal::GetCapturedStderr();
  EXPECT_EQ(names_in(scratch.path()),
            (std::vector<std::string>{"step-2.h5", "step-3.h5", "step-4.h5", "step-5.h5", "step-6.h5"}));
  for (const char* name : {"step-3.h5", "step-5.h5", "step-6.h5"})
    EXPECT_NE(output.find(std::string(name) + " is damaged in "), std::string::npos) << output;
  EXPECT_EQ(output.find("step-4.h5"), std::string::npos) << output;

  // Each damaged one is read and reported once. They are removed when enough newer good ones exist.
  for (int i = 7; i <= 8; ++i) {
    save_alone(scratch.file(fmt::format("step-{}.h5", i)), small_model(), small_state(i));
    known[scratch.file(fmt::format("step-{}.h5", i))] = true;
    ::testing::internal::CaptureStderr();
    prune(scratch.path(), {.keep = 2}, known);
    EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
  }
  EXPECT_EQ(names_in(scratch.path()), (std::vector<std::string>{"step-7.h5", "step-8.h5"}));
}

TEST(SetLink, IsRelativeAndReplacesAnExistingLink) {
  ScratchDirectory scratch;
  write_file(scratch.file("a.h5"), "a");
  write_file(scratch.file("b.h5"), "b");
  set_link(scratch.path(), "latest", scratch.file("a.h5"));
  EXPECT_EQ(fs::read_symlink(scratch.file("latest")), "a.h5");
  fs::create_symlink("left by an interrupted call", scratch.file("latest.partial"));
  set_link(scratch.path(), "latest", scratch.file("b.h5"));
  EXPECT_EQ(fs::read_symlink(scratch.file("latest")), "b.h5");
  EXPECT_EQ(names_in(scratch.path()), (std::vector<std::string>{"a.h5", "b.h5", "latest"}));
  EXPECT_NE(error_of([&] { set_link(scratch.file("missing"), "latest", "a.h5"); }), "");
}

}  // namespace
}  // namespace lockstep::checkpoint::test

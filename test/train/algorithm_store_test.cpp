// Choices that were made under load, or not timed, are marked in the stored tables. Their own run keeps them, and other
// runs make these choices again.
#include "train/algorithm_store.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <string>

#include "base/file.h"

namespace lockstep::train {
namespace {

namespace fs = std::filesystem;

const DeviceInfo kDevice{.name = "a processor, 1 thread", .libraries = {"a library 1.0"}};

/// A run directory, and a cache that is not the user's own.
class AlgorithmStoreTest : public testing::Test {
 protected:
  void SetUp() override {
    const char* parent = std::getenv("TMPDIR");
    folder_ = fmt::format("{}/algorithm_store_test.{}", parent ? parent : "/tmp", ::getpid());
    fs::create_directories(folder_ + "/run");
    const char* cache = std::getenv("LOCKSTEP_CACHE");
    cache_before_ = cache ? cache : "";
    setenv("LOCKSTEP_CACHE", (folder_ + "/cache").c_str(), 1);
  }
  void TearDown() override {
    if (cache_before_.empty())
      unsetenv("LOCKSTEP_CACHE");
    else
      setenv("LOCKSTEP_CACHE", cache_before_.c_str(), 1);
    fs::remove_all(folder_);
  }

  AlgorithmStore store() const {
    Config config;
    config.run.directory = folder_;
    config.run.name = "run";
    return AlgorithmStore(run::RunDirectory(config), kDevice, 32);
  }
  std::string cache_file() const { return folder_ + "/cache/algorithms.json"; }
  std::string run_file() const { return folder_ + "/run/algorithms.json"; }

 private:
  std::string folder_, cache_before_;
};

const Algorithms::Choices kChoices{{"a", "fast"}, {"b", "slow"}};

Algorithms choices_of_which_b_is_marked() {
  Algorithms algorithms;
  algorithms.remember(kChoices, {"b"});
  return algorithms;
}

TEST_F(AlgorithmStoreTest, ChoicesMadeUnderLoadAreMadeAgainByOtherRuns) {
  store().save_in_cache(choices_of_which_b_is_marked());
  EXPECT_NE(read_file(cache_file()).find("timed_under_load"), std::string::npos);
  const Algorithms found = store().load();
  EXPECT_EQ(found.choices(), (Algorithms::Choices{{"a", "fast"}}));
  EXPECT_TRUE(found.under_load().empty());

  store().save_in_cache(Algorithms(kChoices));
  EXPECT_EQ(store().load().choices(), kChoices) << "the second time, the machine was idle";
  EXPECT_EQ(read_file(cache_file()).find("timed_under_load"), std::string::npos);
}

TEST_F(AlgorithmStoreTest, TheirOwnRunKeepsThemAndTheirMark) {
  store().save_in_run(choices_of_which_b_is_marked());
  const Algorithms resumed = store().load();
  EXPECT_EQ(resumed.choices(), kChoices) << "resuming must not change the bits";
  EXPECT_EQ(resumed.under_load(), Algorithms::Keys{"b"}) << "so that the cache does not get it as a good one";
  EXPECT_TRUE(store().load(AlgorithmStore::Sources::cache).choices().empty());

  // Better choices in the cache do not replace the ones that the run used.
  store().save_in_cache(Algorithms(Algorithms::Choices{{"b", "fast"}, {"c", "fast"}}));
  EXPECT_EQ(store().load().choices(), (Algorithms::Choices{{"a", "fast"}, {"b", "slow"}, {"c", "fast"}}));
}

TEST_F(AlgorithmStoreTest, UntimedChoicesAreKeptByTheirOwnRunAlone) {
  Algorithms algorithms;
  algorithms.remember({{"a", "fast"}, {"b", "slow"}, {"c", "first"}}, {"b"}, {"c"});
  store().save_in_run(algorithms);
  store().save_in_cache(algorithms);
  const Algorithms resumed = store().load();
  EXPECT_EQ(resumed.choices(), algorithms.choices());
  EXPECT_EQ(resumed.under_load(), Algorithms::Keys{"b"});
  EXPECT_EQ(resumed.untimed(), Algorithms::Keys{"c"});
  EXPECT_EQ(store().load(AlgorithmStore::Sources::cache).choices(), (Algorithms::Choices{{"a", "fast"}}));
}

TEST_F(AlgorithmStoreTest, EntriesThatAreNoChoicesAreIgnored) {
  store().save_in_run(choices_of_which_b_is_marked());
  std::string text = read_file(run_file());
  const std::size_t at = text.find("\"slow\"");
  ASSERT_NE(at, std::string::npos);
  replace_file(run_file(), text.replace(at, 6, "[3]"));
  EXPECT_EQ(store().load().choices(), (Algorithms::Choices{{"a", "fast"}}));
}

}  // namespace
}  // namespace lockstep::train

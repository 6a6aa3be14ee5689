// ranks: 3
// environment: LOCKSTEP_RANKS_PER_NODE=2
// A run directory must be the same on all nodes: 3 ranks on two simulated nodes.
#include "run/run_directory.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>

#include "test/comm/test_world.h"

namespace lockstep::run {
namespace {

namespace fs = std::filesystem;
using comm::test_world;

/// A configuration with the directory of this test's ranks, which rank 0 creates.
Config config_in(const std::string& place) {
  const char* parent = std::getenv("TMPDIR");
  Config config;
  config.run.directory =
      test_world->all_gather(fmt::format("{}/run_directory_test.{}", parent ? parent : "/tmp", ::getpid()))[0];
  config.run.name = place;
  return config;
}

TEST(RunDirectory, ThatAllNodesSeeIsAccepted) {
  const RunDirectory run(config_in("run"));
  if (test_world->rank() == 0) run.create();
  test_world->barrier();
  run.check_is_shared(*test_world);
  test_world->barrier();
  int files = 0;
  for (const auto& entry : fs::directory_iterator(run.path())) files += entry.is_regular_file() ? 1 : 0;
  EXPECT_EQ(files, 0) << "the probe was left behind";
  test_world->barrier();
  if (test_world->rank() == 0) fs::remove_all(fs::path(run.path()).parent_path());
}

TEST(RunDirectory, ThatOnlyOneNodeSeesIsRejected) {
  const RunDirectory run(config_in(fmt::format("of node {}", test_world->node())));
  if (test_world->local_rank() == 0) run.create();
  test_world->barrier();
  try {
    run.check_is_shared(*test_world);
    ADD_FAILURE() << "two different directories were accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::nodes_differ);
    EXPECT_NE(std::string(error.what()).find("does not see the files that rank 0 writes"), std::string::npos);
  }
  test_world->barrier();
  if (test_world->rank() == 0) fs::remove_all(fs::path(run.path()).parent_path());
}

}  // namespace
}  // namespace lockstep::run

// ranks: 3 4
// environment: LOCKSTEP_RANKS_PER_NODE=2
// also: OnNodes/AnyCommunicator.*:World.*
// GPUs on several nodes sum with NCCL. The nodes are simulated and have two ranks each. fp32 is summed by NCCL;
// gradients that travel in bf16 and fp16 are summed by DeviceExchange. The last tests stage through host memory: what
// the NCCL communicators left in the progress table must not confuse the communicators that reuse their channels.
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "test/comm/collective_tests.h"
#include "test/comm/fake_nccl.h"
#include "test/support/recording_backend.h"

namespace lockstep::comm {
namespace {

Backend& device() {
  static const NcclHome fake;
  static test::RecordingBackend backend(test_backend(), "GPU-" + std::to_string(test_world->rank()));
  return backend;
}

}  // namespace

INSTANTIATE_TEST_SUITE_P(OnNodes, AnyCommunicator,
                         ::testing::Values(CommunicatorCase{"nccl", device}, CommunicatorCase{"staged", device}));

TEST(NcclOnNodes, DescribesCommunicator) {
  EXPECT_EQ(make_communicator({}, *test_world, device())->describe(),
            "NCCL 2.28.9, " + std::to_string(test_world->size()) + " ranks on 2 nodes");
}

/// With 3 ranks, only one of the two nodes has two ranks.
TEST(NcclOnNodes, WarnsThatSixteenBitsNeedEqualNodes) {
  const auto warns = [](const Config::Comm& config) {
    testing::internal::CaptureStderr();
    make_communicator(config, *test_world, device());
    return testing::internal::GetCapturedStderr().find("nodes have different numbers of ranks") != std::string::npos;
  };
  Config::Comm config;
  EXPECT_FALSE(warns(config));
  config.gradients = "bf16";
  EXPECT_EQ(warns(config), test_world->size() == 3 && test_world->rank() == 0);
}

/// The number of memory registrations of this rank.
int n_registrations() {
  const std::string log =
      (std::filesystem::temp_directory_path() / ("nccl-nodes." + std::to_string(::getpid()))).string();
  ::setenv("FAKE_NCCL_LOG", log.c_str(), 1);
  {
    const auto communicator = make_communicator({}, *test_world, device());
    const auto memory = communicator->allocate(12345, "test");
    test_world->barrier();
  }
  ::unsetenv("FAKE_NCCL_LOG");
  std::ifstream file(log);
  int n = 0;
  for (std::string line; std::getline(file, line);)
    if (line.find(" register ") != std::string::npos || line.find(" window ") != std::string::npos) ++n;
  std::filesystem::remove(log);
  return n;
}

// NCCL before 2.32 can hang with registered memory between nodes.
TEST(NcclOnNodes, RegistersMemoryOnRequestOnly) {
  ::unsetenv("NCCL_GRAPH_REGISTER");
  EXPECT_EQ(n_registrations(), 0);
  EXPECT_STREQ(std::getenv("NCCL_GRAPH_REGISTER"), "0");
  EXPECT_EQ(n_registrations(), 0);
  ::setenv("NCCL_GRAPH_REGISTER", "1", 1);
  EXPECT_EQ(n_registrations(), 1);
  ::unsetenv("NCCL_GRAPH_REGISTER");
}

TEST(NcclOnNodes, SumsInBf16) { test_wire_type(DType::bf16, device()); }
TEST(NcclOnNodes, SumsInFp16) { test_wire_type(DType::fp16, device()); }

}  // namespace lockstep::comm

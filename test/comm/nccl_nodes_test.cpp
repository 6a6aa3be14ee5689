// ranks: 3 4
// environment: LOCKSTEP_RANKS_PER_NODE=2
// also: OnNodes/AnyBackend.*:World.*
// GPUs of several nodes (pretended ones of two ranks each) that sum by NCCL: fp32 as ever, and what goes over the wire
// in bf16 and fp16 by an exchange of ours. Then by way of the host's memory: what NCCL's communicators left on the
// board must not confuse those that come to their lanes.
#include <cstdlib>

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

INSTANTIATE_TEST_SUITE_P(OnNodes, AnyBackend, ::testing::Values(Tested{"nccl", device}, Tested{"staged", device}));

TEST(NcclOnNodes, SaysWhatItUses) {
  EXPECT_EQ(make_communicator({}, *test_world, device())->describe(),
            "NCCL 2.28.9, " + std::to_string(test_world->size()) + " ranks on 2 nodes");
}

TEST(NcclOnNodes, SumsInBf16) { test_sums_in(DType::bf16, device()); }
TEST(NcclOnNodes, SumsInFp16) { test_sums_in(DType::fp16, device()); }

}  // namespace lockstep::comm

// ranks: 2 3
// also: Device/AnyCommunicator.*:World.*
// The staged communicator, on a stand-in for a device whose streams are queues: its results, and what it queues.
#include "comm/staged_communicator.h"

#include "test/comm/collective_tests.h"
#include "test/support/recording_backend.h"

namespace lockstep::comm {
namespace {

test::RecordingBackend& device() {
  static test::RecordingBackend backend(test_backend());
  return backend;
}
Backend& device_as_backend() { return device(); }

}  // namespace

INSTANTIATE_TEST_SUITE_P(Device, AnyCommunicator,
                         ::testing::Values(CommunicatorCase{"staged", device_as_backend},
                                           CommunicatorCase{"shared", device_as_backend},
                                           CommunicatorCase{"mpi", device_as_backend}));

TEST(Staged, DescribesCommunicator) {
  Config::Comm config;
  config.backend = "staged";
  const std::string ranks = std::to_string(test_world->size());
  EXPECT_EQ(make_communicator(config, *test_world, device())->describe(),
            "staged through host memory: shared memory, " + ranks + " ranks on 1 node");
  config.backend = "mpi";
  EXPECT_EQ(make_communicator(config, *test_world, device())->describe(),
            "staged through host memory: MPI, " + ranks + " ranks");
}

// The ring is pinned and smaller than the slice. Each chunk is copied to the host, summed, and copied back.
TEST(Staged, CopiesChunksOnSeparateStreams) {
  Config::Comm config;
  config.backend = "staged";
  const auto c = make_communicator(config, *test_world, device());
  constexpr std::size_t kElements = (StagedCommunicator::kRingBytes + StagedCommunicator::kChunkBytes / 2) / 4;
  const auto memory = c->allocate(kElements * sizeof(float), "test");
  float* data = static_cast<float*>(memory->data());
  std::fill(data, data + kElements, 1.0f);
  const auto stream = device().make_stream();
  const auto ready = device().make_event();
  const auto done = c->make_event();
  device().recording().clear();
  ready->record(*stream);
  c->all_reduce_async({data, kElements, DType::fp32}, *ready, *done, "in chunks");
  stream->wait(*done);  // blocks
  EXPECT_EQ(std::count(data, data + kElements, static_cast<float>(c->size())), static_cast<long>(kElements));
  std::size_t out_bytes = 0, back_bytes = 0;
  int out_stream = -1, back_stream = -1;
  for (const test::Call& call : device().recording().calls()) {
    if (call.what == "copy_to_host") {
      out_bytes += call.size_bytes;
      out_stream = call.stream;
      EXPECT_LE(call.size_bytes, StagedCommunicator::kChunkBytes);
    } else if (call.what == "copy_to_device") {
      back_bytes += call.size_bytes;
      back_stream = call.stream;
    }
  }
  EXPECT_EQ(out_bytes, kElements * sizeof(float));
  EXPECT_EQ(back_bytes, kElements * sizeof(float));
  EXPECT_NE(out_stream, back_stream);
  test_world->barrier();
}

// The communicator waits for slow copies in both directions, even when it reuses a slot of the ring.
TEST(Staged, WaitsForSlowCopies) {
  Config::Comm config;
  config.backend = "staged";
  const auto c = make_communicator(config, *test_world, device());
  constexpr std::size_t kElements = 2 * StagedCommunicator::kRingBytes / sizeof(float);
  const auto memory = c->allocate(kElements * sizeof(float), "test");
  float* data = static_cast<float*>(memory->data());
  const auto done = c->make_event();
  device().slow_down(5);
  for (int round = 1; round <= 2; ++round) {
    for (std::size_t i = 0; i < kElements; ++i)
      data[i] = static_cast<float>(round + c->rank()) + static_cast<float>(i % 7);
    c->all_reduce_async({data, kElements, DType::fp32}, ready_now, *done, "slow");
    done->synchronize();
    const int n = c->size();
    std::size_t wrong = 0;
    for (std::size_t i = 0; i < kElements; ++i)
      wrong +=
          data[i] != static_cast<float>(n * round + n * (n - 1) / 2) + static_cast<float>(n * static_cast<int>(i % 7));
    EXPECT_EQ(wrong, 0u) << "round " << round;
  }
  device().slow_down(0);
  test_world->barrier();
}

TEST(Staged, RejectsAllocationsOfDifferentSizes) {
  Config::Comm config;
  config.backend = "staged";
  const auto c = make_communicator(config, *test_world, device());
  EXPECT_THROW(c->allocate(1000 + static_cast<std::size_t>(c->rank()), "test"), Error);
  test_world->barrier();
}

}  // namespace lockstep::comm

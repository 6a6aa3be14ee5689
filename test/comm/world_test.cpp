// ranks: 1 2 3 4
// also: OneNode/AnyCommunicator.*:World.*
// The world, and communicators between ranks on one node.
#include <chrono>
#include <thread>

#include "comm/launch.h"
#include "test/comm/collective_tests.h"

namespace lockstep::comm {

INSTANTIATE_TEST_SUITE_P(OneNode, AnyCommunicator,
                         ::testing::Values(CommunicatorCase{"auto", test_backend},
                                           CommunicatorCase{"mpi", test_backend},
                                           CommunicatorCase{"staged", test_backend}));

TEST(OneNode, ReportsNodeAndLocalRank) {
  EXPECT_EQ(test_world->n_nodes(), 1);
  EXPECT_EQ(test_world->node(), 0);
  EXPECT_EQ(test_world->local_rank(), test_world->rank());
  EXPECT_EQ(test_world->local_size(), test_world->size());
  EXPECT_FALSE(test_world->host().empty());
}

TEST(OneNode, AllowsSharedAndMpi) {
  Config::Comm config;
  config.backend = "shared";
  const auto c = make_communicator(config, *test_world, test_backend());
  if (test_world->size() > 1) {
    EXPECT_EQ(c->describe(), "shared memory, " + std::to_string(test_world->size()) + " ranks on 1 node");
    config.backend = "mpi";
    EXPECT_EQ(make_communicator(config, *test_world, test_backend())->describe(),
              "MPI, " + std::to_string(test_world->size()) + " ranks");
  }
}

// The result has exactly the bits of a sum in rank order.
TEST(OneNode, SumsInOrderOfRanks) {
  const auto c = make_communicator({}, *test_world, test_backend());
  constexpr std::size_t kElements = 10007;
  const auto memory = c->allocate(kElements * sizeof(float), "test");
  float* data = static_cast<float*>(memory->data());
  for (std::size_t i = 0; i < kElements; ++i) data[i] = static_cast<float>(value(c->rank(), i));
  const auto done = c->make_event();
  c->all_reduce_async({data, kElements, DType::fp32}, ready_now, *done, "ordered");
  done->synchronize();
  const std::vector<float> expected = expected_sum<float>(c->size(), kElements);
  EXPECT_EQ(std::memcmp(expected.data(), data, kElements * sizeof(float)), 0);
  test_world->barrier();
}

TEST(OneNode, TimesExchangesWithoutTheWaitForOtherRanks) {
  const auto c = make_communicator({}, *test_world, test_backend());
  const auto memory = c->allocate(1 << 20, "test");
  const auto done = c->make_event();
  const double before = c->exchange_seconds().value();
  test_world->barrier();
  if (c->rank() == 0) std::this_thread::sleep_for(std::chrono::milliseconds(400));
  c->all_reduce_async({memory->data(), 1 << 18, DType::fp32}, ready_now, *done, "late");
  done->synchronize();
  test_world->barrier();  // so that the communication thread has added the time
  const double seconds = c->exchange_seconds().value() - before;
  if (c->size() > 1) {
    EXPECT_GT(seconds, 0);
  }
  EXPECT_LT(seconds, 0.3);
}

TEST(OneNode, RejectsDifferentBuilds) {
  check_builds_agree(*test_world, "0.1.0 (abc)");
  if (test_world->size() == 1) return;
  const bool is_last = test_world->rank() == test_world->size() - 1;
  try {
    check_builds_agree(*test_world, is_last ? "0.1.0 (def)" : "0.1.0 (abc)");
    ADD_FAILURE() << "two different builds were accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::nodes_differ);
    EXPECT_EQ(error.what(),
              fmt::format("rank {} on {} runs lockstep 0.1.0 (def), but rank 0 on {} runs lockstep 0.1.0 (abc)",
                          test_world->size() - 1, test_world->host(), test_world->host()));
  }
}

}  // namespace lockstep::comm

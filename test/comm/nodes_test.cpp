// ranks: 3 4 5
// environment: LOCKSTEP_RANKS_PER_NODE=2
// also: SeveralNodes/AnyCommunicator.*:World.*
// The world, and communicators between several nodes. The nodes are simulated: each has two ranks, but the last may
// have one.
#include <cstdlib>

#include "test/comm/collective_tests.h"

namespace lockstep::comm {

INSTANTIATE_TEST_SUITE_P(SeveralNodes, AnyCommunicator,
                         ::testing::Values(CommunicatorCase{"auto", test_backend},
                                           CommunicatorCase{"mpi", test_backend},
                                           CommunicatorCase{"staged", test_backend}));

TEST(SeveralNodes, ReportsNodeAndLocalRank) {
  EXPECT_EQ(test_world->n_nodes(), (test_world->size() + 1) / 2);
  EXPECT_EQ(test_world->node(), test_world->rank() / 2);
  EXPECT_EQ(test_world->local_rank(), test_world->rank() % 2);
  const bool is_only_rank = test_world->size() % 2 == 1 && test_world->rank() == test_world->size() - 1;
  EXPECT_EQ(test_world->local_size(), is_only_rank ? 1 : 2);
}

TEST(SeveralNodes, RejectsShared) {
  Config::Comm config;
  config.backend = "shared";
  try {
    make_communicator(config, *test_world, test_backend());
    ADD_FAILURE() << "comm.backend=shared on several nodes";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::comm_backend);
    EXPECT_NE(std::string(e.what()).find(
                  fmt::format("but they are on {} nodes: set comm.backend=auto", test_world->n_nodes())),
              std::string::npos)
        << e.what();
  }
}

TEST(SeveralNodes, DescribesCommunicator) {
  const std::string nodes = std::to_string(test_world->n_nodes());
  EXPECT_EQ(
      make_communicator({}, *test_world, test_backend())->describe(),
      "shared memory within " + nodes + " nodes, MPI between them, " + std::to_string(test_world->size()) + " ranks");
}

TEST(SeveralNodes, SumsInBf16) { test_wire_type(DType::bf16, test_backend()); }
TEST(SeveralNodes, SumsInFp16) { test_wire_type(DType::fp16, test_backend()); }

}  // namespace lockstep::comm

// ranks: 3 4 5
// environment: LOCKSTEP_RANKS_PER_NODE=2
// also: SeveralNodes/AnyBackend.*:World.*
// The same on several nodes: pretended ones of two ranks each, the last one perhaps of one.
#include <cstdlib>

#include "test/comm/collective_tests.h"

namespace lockstep::comm {

INSTANTIATE_TEST_SUITE_P(SeveralNodes, AnyBackend,
                         ::testing::Values(Tested{"auto", test_backend}, Tested{"mpi", test_backend},
                                           Tested{"staged", test_backend}));

TEST(SeveralNodes, Places) {
  EXPECT_EQ(test_world->n_nodes(), (test_world->size() + 1) / 2);
  EXPECT_EQ(test_world->node(), test_world->rank() / 2);
  EXPECT_EQ(test_world->local_rank(), test_world->rank() % 2);
  const bool is_alone = test_world->size() % 2 == 1 && test_world->rank() == test_world->size() - 1;
  EXPECT_EQ(test_world->local_size(), is_alone ? 1 : 2);
}

TEST(SeveralNodes, SharedBackendIsRefused) {
  Config::Comm config;
  config.backend = "shared";
  try {
    make_communicator(config, *test_world, test_backend());
    ADD_FAILURE() << "comm.backend=shared on several nodes";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::comm_backend);
  }
}

TEST(SeveralNodes, SaysWhatItUses) {
  const std::string nodes = std::to_string(test_world->n_nodes());
  EXPECT_EQ(
      make_communicator({}, *test_world, test_backend())->describe(),
      "shared memory within " + nodes + " nodes, MPI between them, " + std::to_string(test_world->size()) + " ranks");
}

TEST(SeveralNodes, SumsInBf16) { test_sums_in(DType::bf16, test_backend()); }
TEST(SeveralNodes, SumsInFp16) { test_sums_in(DType::fp16, test_backend()); }

}  // namespace lockstep::comm

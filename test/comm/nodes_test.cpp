// ranks: 3 4 5
// The same on several nodes: pretended ones of two ranks each, the last one perhaps of one.
#include <cstdlib>

#include "test/comm/collective_tests.h"

namespace lockstep::comm {

INSTANTIATE_TEST_SUITE_P(Backends, AnyBackend,
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
      "shared memory inside " + nodes + " nodes, MPI between them, " + std::to_string(test_world->size()) + " ranks");
}

/// Each node's sum is rounded, and the sum of all: the same bits on every rank, within two roundings to 8 bits.
TEST(SeveralNodes, SumsInBf16) {
  Config::Comm config;
  config.gradients = "bf16";
  const auto communicator = make_communicator(config, *test_world, test_backend());
  EXPECT_TRUE(communicator->describe().ends_with("gradients in bf16"));
  constexpr std::size_t kElements = 700'001;  // several chunks, the last one short
  const auto memory = communicator->allocate(kElements * sizeof(float), "test");
  auto* const values = static_cast<float*>(memory->data());
  const auto of_rank = [](int rank, std::size_t i) {
    return static_cast<float>(i % 1013) / 1013.0f + 0.1f * static_cast<float>(rank);
  };
  for (const DType wire : {DType::bf16, DType::fp32}) {
    for (std::size_t i = 0; i < kElements; ++i) values[i] = of_rank(test_world->rank(), i);
    const auto done = communicator->make_event();
    communicator->all_reduce_async({values, kElements, DType::fp32, wire}, at_once, *done, "sum");
    done->synchronize();
    double furthest = 0;
    for (std::size_t i = 0; i < kElements; ++i) {
      double sum = 0;
      for (int rank = 0; rank < test_world->size(); ++rank) sum += of_rank(rank, i);
      furthest = std::max(furthest, std::abs(values[i] / sum - 1));
    }
    EXPECT_LT(furthest, wire == DType::bf16 ? 2 * 0x1p-8 : 1e-6);
    EXPECT_EQ(furthest > 0x1p-10, wire == DType::bf16) << "rounded or not";
    const std::string_view bytes(reinterpret_cast<const char*>(values), kElements * sizeof(float));
    const std::vector<std::string> all = test_world->all_gather(bytes);
    for (const std::string& theirs : all) EXPECT_TRUE(theirs == all[0]);
  }
}

}  // namespace lockstep::comm

int main(int argc, char** argv) {
  ::setenv("LOCKSTEP_RANKS_PER_NODE", "2", 1);
  return lockstep::comm::run_tests_in_world(argc, argv);
}

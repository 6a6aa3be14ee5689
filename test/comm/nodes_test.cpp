// ranks: 3 4 5
// environment: LOCKSTEP_RANKS_PER_NODE=2
// also: SeveralNodes/AnyCommunicator.*:World.*
// The world, and communicators between several nodes. The nodes are simulated: each has two ranks, but the last may
// have one.
#include <mpi.h>

#include <atomic>
#include <cstdlib>

#include "comm/links.h"
#include "comm/topology.h"
#include "test/comm/collective_tests.h"

namespace {
std::atomic<std::size_t> sent_bytes{0};
}

/// Counts what this rank sends. MPI lets a program replace MPI functions; the originals are also available as PMPI_*.
extern "C" int MPI_Isend(const void* data, int count, MPI_Datatype type, int to, int tag, MPI_Comm communicator,
                         MPI_Request* request) {
  int size = 0;
  MPI_Type_size(type, &size);
  sent_bytes += static_cast<std::size_t>(count) * static_cast<std::size_t>(size);
  return PMPI_Isend(data, count, type, to, tag, communicator, request);
}

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
    EXPECT_EQ(e.code(), ErrorCode::config_conflict);
    EXPECT_NE(std::string(e.what()).find(
                  fmt::format("but they are on {} nodes: set comm.backend=auto", test_world->n_nodes())),
              std::string::npos)
        << e.what();
  }
}

TEST(SeveralNodes, DescribesCommunicator) {
  const std::string nodes = std::to_string(test_world->n_nodes());
  EXPECT_EQ(make_communicator({}, *test_world, test_backend())->describe(),
            "shared memory within " + nodes + " nodes, MPI between them, " + std::to_string(test_world->size()) +
                " ranks" + fastest_network());
}

/// The bytes that all ranks send during one collective over equal shards.
double sent_by_all(Communicator& communicator, Collective collective, std::size_t n) {
  const auto memory = communicator.allocate(n * sizeof(float), "test");
  HostEvent ready;
  const auto done = communicator.make_event();
  const std::size_t before = sent_bytes.load();
  communicator.exchange_async({collective, {static_cast<float*>(memory->data()), n, DType::fp32}}, ready, *done,
                              "counted");
  done->synchronize();
  double sum = 0;
  for (const std::string& sent : test_world->all_gather(std::to_string(sent_bytes.load() - before)))
    sum += std::stod(sent);
  return sum;
}

TEST(SeveralNodes, SendsTotalsOnlyToTheNodesThatNeedThem) {
  const auto communicator = make_communicator({}, *test_world, test_backend());
  const std::size_t n = 500'000 * static_cast<std::size_t>(test_world->size());
  const double nodes = test_world->n_nodes(), whole = static_cast<double>(n * sizeof(float));
  EXPECT_NEAR(sent_by_all(*communicator, Collective::all_reduce, n) / whole, 2 * (nodes - 1), 0.05);
  EXPECT_NEAR(sent_by_all(*communicator, Collective::reduce_scatter, n) / whole, nodes - 1, 0.05);
  EXPECT_NEAR(sent_by_all(*communicator, Collective::all_gather, n) / whole, nodes - 1, 0.05);
}

TEST(SeveralNodes, SumsMoreChunksThanAreInFlight) {
  const auto communicator = make_communicator({}, *test_world, test_backend());
  const std::size_t chunk = Topology{}.chunk_bytes() / sizeof(float);
  const std::size_t n = (Topology::kExchangesInFlight + 3) * chunk + 5;
  const auto memory = communicator->allocate(n * sizeof(float), "test");
  auto* data = static_cast<float*>(memory->data());
  for (std::size_t i = 0; i < n; ++i)
    data[i] = static_cast<float>(i % 1009 + i / chunk) * (communicator->rank() + 1.0F);
  HostEvent ready;
  const auto done = communicator->make_event();
  communicator->all_reduce_async({data, n, DType::fp32}, ready, *done, "test");
  done->synchronize();
  const float ranks = static_cast<float>(communicator->size()) * (static_cast<float>(communicator->size()) + 1) / 2;
  std::size_t n_wrong = 0;
  for (std::size_t i = 0; i < n; ++i) n_wrong += data[i] == static_cast<float>(i % 1009 + i / chunk) * ranks ? 0 : 1;
  EXPECT_EQ(n_wrong, 0u);
}

TEST(SeveralNodes, ScattersSumsInBf16) {
  Config::Comm config;
  config.gradients = "bf16";
  test_reduce_scatter(*make_communicator(config, *test_world, test_backend()), DType::bf16);
}

TEST(SeveralNodes, SumsInBf16) { test_wire_type(DType::bf16, test_backend()); }
TEST(SeveralNodes, SumsInFp16) { test_wire_type(DType::fp16, test_backend()); }

}  // namespace lockstep::comm

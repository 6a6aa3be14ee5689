// What an exchange with 16-bit gradients sends. Only one rank exists; the others are not running, and its network
// records the transfers. nccl_nodes_test.cpp checks the sums.
#include "comm/device_exchange.h"

#include <gtest/gtest.h>

#include <vector>

#include "comm/buckets.h"
#include "comm/topology.h"
#include "lockstep/backend.h"

namespace lockstep::comm {
namespace {

/// Counts the bytes that `rank` sends to other ranks of its node, and to other nodes.
class CountingNetwork final : public PointToPoint {
 public:
  CountingNetwork(const RankTable& ranks, int rank) : ranks_(ranks), rank_(rank) {}
  void transfer(std::span<const Transfer> transfers, Stream&) override {
    for (const Transfer& t : transfers) {
      const bool is_of_node = node_of(t.peer) == node_of(rank_);
      std::size_t& count = t.direction == Transfer::Direction::receive ? received : is_of_node ? inside : outside;
      count += t.size_bytes;
      EXPECT_GT(t.size_bytes, 0u);
      EXPECT_NE(t.peer, rank_);
    }
  }
  std::size_t inside = 0, outside = 0, received = 0;

 private:
  int node_of(int rank) const { return ranks_.rows[static_cast<std::size_t>(rank)].node; }
  const RankTable& ranks_;
  int rank_;
};

struct Sent {
  double inside = 0, outside = 0;  // per byte of the fp32 slice
};

/// What a rank sends for `n` gradients in bf16.
Sent sent_by(int rank, int n_ranks, int n_nodes, std::size_t n, Collective collective = Collective::all_reduce) {
  RankTable ranks = planned_ranks(n_ranks, n_nodes);
  ranks.rank = rank;
  Config::Comm config;
  config.gradients = "bf16";
  const Topology topology = topology_of(config, ranks, {}, MemorySpace::device);
  const auto cpu = make_backend({.device = "cpu", .threads = 1});
  DeviceExchange exchange(*cpu, rank, device_exchange_plan(topology),
                          [&](std::size_t size_bytes, const std::string& of) { return cpu->allocate(size_bytes, of); });
  CountingNetwork network(ranks, rank);
  std::vector<float> values(n, 1.0f);
  const auto stream = cpu->make_stream();
  const Slice slice{.data = values.data(), .n_elements = n, .wire = DType::bf16};
  if (collective == Collective::all_reduce)
    exchange.all_reduce(slice, network, *stream);
  else
    exchange.reduce_scatter(slice, network, *stream);
  const auto whole = static_cast<double>(n * sizeof(float));
  return {static_cast<double>(network.inside) / whole, static_cast<double>(network.outside) / whole};
}

constexpr std::size_t kElements = 6'000'000;  // two chunks; shards of 3, 4 and 64 ranks

// 8 nodes of 8 GPUs: with one network card per GPU, it sends half of what NCCL sends in fp32.
TEST(DeviceExchange, SendsASixteenBitShardOfEachRankBetweenNodes) {
  for (const int rank : {0, 9, 63}) {
    const Sent sent = sent_by(rank, 64, 8, kElements);
    EXPECT_NEAR(sent.outside, 2 * (7.0 / 8) / 8 / 2, 1e-3) << "rank " << rank;
    EXPECT_NEAR(sent.inside, 7.0 / 8 + (7.0 / 8) / 2, 1e-3) << "fp32 there, bf16 back";
  }
}

TEST(DeviceExchange, SendsToAllRanksIfNodesHaveDifferentNumbers) {
  const Sent sent = sent_by(0, 3, 2, kElements);  // 2 ranks on the first node
  EXPECT_NEAR(sent.outside, 2 * (1.0 / 3) / 2, 1e-3);
}

TEST(DeviceExchange, SendsHalfInAReduceScatter) {
  for (const auto& [ranks, nodes] : {std::pair{64, 8}, std::pair{3, 2}, std::pair{4, 4}})
    for (const int rank : {0, ranks - 1}) {
      const Sent whole = sent_by(rank, ranks, nodes, kElements),
                 shard = sent_by(rank, ranks, nodes, kElements, Collective::reduce_scatter);
      EXPECT_NEAR(shard.outside, whole.outside / 2, 1e-3) << "rank " << rank << " of " << ranks;
      EXPECT_LT(shard.inside, whole.inside + 1e-3);
    }
}

/// What `lockstep plan` reports, per byte of fp32 gradients.
Sent planned(const std::string& gradients, int n_ranks, int n_nodes, MemorySpace space, const SumOrder& order = {}) {
  Config::Comm config;
  config.gradients = gradients;
  const Topology topology = topology_of(config, planned_ranks(n_ranks, n_nodes), order, space);
  std::vector<Bucket> buckets(1);
  buckets[0].n_elements = kElements;
  buckets[0].wire = topology.wire;
  const Traffic traffic = traffic_between_nodes(topology, buckets, 1, 0);
  const auto whole = static_cast<double>(kElements * sizeof(float));
  return {traffic.per_node / whole, traffic.per_rank / whole};
}

TEST(Traffic, IsWhatIsSent) {
  for (const auto& [ranks, nodes] : {std::pair{64, 8}, std::pair{3, 2}, std::pair{4, 4}})
    EXPECT_NEAR(
        planned("bf16", ranks, nodes, MemorySpace::device).outside,
        std::max(sent_by(0, ranks, nodes, kElements).outside, sent_by(ranks - 1, ranks, nodes, kElements).outside),
        1e-3)
        << ranks << " ranks on " << nodes << " nodes";
}

TEST(Traffic, OfNcclAndOfLeaders) {
  const Sent ring = planned("fp32", 64, 8, MemorySpace::device), leaders = planned("fp32", 64, 8, MemorySpace::host);
  EXPECT_NEAR(ring.inside, 2 * 63.0 / 64, 1e-9) << "per node";
  EXPECT_NEAR(ring.outside, 2 * 63.0 / 64 / 8, 1e-9) << "per rank";
  EXPECT_NEAR(leaders.inside, 2 * 7.0 / 8, 1e-9);
  EXPECT_EQ(leaders.outside, leaders.inside);
  EXPECT_EQ(planned("fp32", 8, 1, MemorySpace::device).outside, 0);
  const Sent fixed = planned("fp32", 64, 8, MemorySpace::device, SumOrder{.merges = std::vector<int>(64)});
  EXPECT_NEAR(fixed.outside, 2 * 56.0 / 64, 1e-9);
}

TEST(Traffic, OfShards) {
  const Topology topology = topology_of({}, planned_ranks(4, 2), {}, MemorySpace::device);
  std::vector<Bucket> buckets(1);
  buckets[0].n_elements = 1000;
  buckets[0].n_shards = 4;
  EXPECT_NEAR(traffic_between_nodes(topology, buckets, 1, 2000).per_node, 0.75 * (4000 + 2000), 1e-9);
  const Topology leaders = topology_of({}, planned_ranks(4, 2), {}, MemorySpace::host);
  EXPECT_NEAR(traffic_between_nodes(leaders, buckets, 1, 2000).per_node, 0.5 * (4000 + 2000), 1e-9);
}

}  // namespace
}  // namespace lockstep::comm

// The verdicts on what ranks exchange, derived from numbers, and the rounds of pairs.
#include "doctor/links.h"

#include <gtest/gtest.h>

#include <set>

#include "test/doctor/support.h"

namespace lockstep::doctor {
namespace {

using Verdicts = std::vector<std::string>;

constexpr double kSize = 51e6, kTenGigabit = 1.25e9;

/// 2 nodes x 2 ranks, 10 Gbit/s Ethernet, and all-reduces at `bandwidth` (busbw).
std::vector<LinkFacts> four_ranks(double bandwidth) {
  const AllReduceTime small{.where = "all ranks", .n_ranks = 4, .size_bytes = 8, .seconds = 50e-6};
  const AllReduceTime middle{
      .where = "all ranks", .n_ranks = 4, .size_bytes = kSize, .seconds = kSize * 1.5 / bandwidth};
  const LinkFacts facts{
      .transport = "shared memory within 2 nodes, MPI between them",
      .interfaces = {{"eth0", "Ethernet", kTenGigabit, 60e6}, {"eth1", "Ethernet", kTenGigabit / 10, 100}},
      .expected_sent_bytes = kSize,
      .times = {small, middle}};
  return std::vector<LinkFacts>(4, facts);
}
std::vector<Check> check(const std::vector<LinkFacts>& links) {
  DeviceFacts cpu;
  cpu.memory_rate = 20e9;
  const std::vector<Check> checks = check_links(places_on(2, 2), links, std::vector<DeviceFacts>(4, cpu));
  EXPECT_EQ(without_remedy(checks), Verdicts());
  return checks;
}

TEST(AllReduceTime, IsConvertedAsInNcclTests) {
  const AllReduceTime time{.where = "", .n_ranks = 4, .size_bytes = 100, .seconds = 2};
  EXPECT_DOUBLE_EQ(time.algorithm_bandwidth(), 50);
  EXPECT_DOUBLE_EQ(time.bus_bandwidth(), 75);
}

TEST(LinkChecks, CompareTheBandwidthWithTheLink) {
  EXPECT_EQ(verdicts(check(four_ranks(1e9)), "all-reduce 51 MB"), Verdicts({"pass all ranks"}));
  EXPECT_EQ(verdicts(check(four_ranks(0.5e9)), "all-reduce 51 MB"), Verdicts({"warn all ranks"}));
  EXPECT_EQ(verdicts(check(four_ranks(12.5e6)), "all-reduce 51 MB"), Verdicts({"fail all ranks"}));
}
TEST(LinkChecks, ExpectNoMoreOfTcpThanItGives) {
  auto links = four_ranks(1.5e9);
  const auto verdict = [&](const char* kind) {
    for (LinkFacts& facts : links) {
      facts.interfaces[0].kind = kind;
      facts.interfaces[0].bytes_per_second = 10 * kTenGigabit;
    }
    return verdicts(check(links), "all-reduce 51 MB");
  };
  EXPECT_EQ(verdict("Ethernet"), Verdicts({"pass all ranks"}));
  EXPECT_EQ(verdict("InfiniBand"), Verdicts({"fail all ranks"}));
}
TEST(LinkChecks, LimitTheLatency) {
  auto links = four_ranks(1e9);
  EXPECT_EQ(verdicts(check(links), "all-reduce 8 B"), Verdicts({"pass all ranks"}));
  links[0].times[0].seconds = 0.02;
  EXPECT_EQ(verdicts(check(links), "all-reduce 8 B"), Verdicts({"warn all ranks"}));
  links[0].times[0].seconds = 0.2;
  EXPECT_EQ(verdicts(check(links), "all-reduce 8 B"), Verdicts({"fail all ranks"}));
}
TEST(LinkChecks, CompareWithTheMemoryInsideANode) {
  auto links = four_ranks(1e9);
  // 2 ranks that move 20 GB/s each should reach 5 GB/s.
  links[0].times.push_back({.where = "inside each node", .n_ranks = 2, .size_bytes = kSize, .seconds = kSize / 4e9});
  EXPECT_EQ(verdicts(check(links), "all-reduce 51 MB"), Verdicts({"pass all ranks", "pass inside each node"}));
  links[0].times.back().seconds = kSize / 0.9e9;
  EXPECT_EQ(verdicts(check(links), "all-reduce 51 MB"), Verdicts({"pass all ranks", "fail inside each node"}));
}
TEST(LinkChecks, NameTheInterfaceInUse) {
  auto links = four_ranks(1e9);
  auto checks = check(links);
  EXPECT_EQ(verdicts(checks, "network"), Verdicts({"pass node1", "pass node2"}));
  EXPECT_EQ(checks[1].value, "eth0, Ethernet, 10 Gbit/s");
  for (Interface& interface : links[2].interfaces) interface.sent_bytes = interface.name == "eth1" ? 60e6 : 0;
  EXPECT_EQ(verdicts(check(links), "network"), Verdicts({"pass node1", "warn node2"}));
  for (Interface& interface : links[2].interfaces) interface.sent_bytes = 0;
  EXPECT_EQ(verdicts(check(links), "network"), Verdicts({"pass node1", "unknown node2"}));
}
TEST(LinkChecks, FailForASkewedClock) {
  auto links = four_ranks(1e9);
  const auto verdict = [&](double skew, double uncertainty) {
    links[2].clock_skew_seconds = skew;
    links[2].clock_uncertainty_seconds = uncertainty;
    return verdicts(check(links), "time of day");
  };
  EXPECT_EQ(verdict(0.01, 0.001), Verdicts({"pass node2"}));
  EXPECT_EQ(verdict(-0.5, 0.001), Verdicts({"warn node2"}));
  EXPECT_EQ(verdict(60, 0.001), Verdicts({"fail node2"}));
  EXPECT_EQ(verdict(60, 59.95), Verdicts({"pass node2"}));  // the clock may be right, given this uncertainty
}

/// Pairs with one rank per node, all at 1 GB/s except those that `slow` selects.
template <typename IsSlow>
std::vector<Check> check_nodes(int n_nodes, const IsSlow& is_slow) {
  std::vector<LinkFacts> links(static_cast<std::size_t>(n_nodes));
  for (int a = 0; a < n_nodes; ++a) {
    links[static_cast<std::size_t>(a)].interfaces = {{"eth0", "Ethernet", kTenGigabit, 1}};
    for (int b = a + 1; b < n_nodes; ++b)
      links[static_cast<std::size_t>(a)].pairs.push_back({a, b, is_slow(a, b) ? 0.1e9 : 1e9});
  }
  return check_links(places_on(n_nodes, 1), links, std::vector<DeviceFacts>(static_cast<std::size_t>(n_nodes)));
}
TEST(LinkChecks, NameASlowNode) {
  const auto checks = check_nodes(4, [](int a, int b) { return a == 2 || b == 2; });
  int n_failed = 0;
  for (const Check& check : checks)
    if (check.name == "pair between nodes" && check.status == Status::fail) {
      ++n_failed;
      EXPECT_NE(check.remedy.find("All links of node3 are slow"), std::string::npos) << check.remedy;
    }
  EXPECT_EQ(n_failed, 3);
}
TEST(LinkChecks, NameASlowLink) {
  const auto checks = check_nodes(4, [](int a, int b) { return a == 1 && b == 3; });
  Verdicts failed;
  for (const Check& check : checks)
    if (check.status == Status::fail) failed.push_back(check.scope);
  EXPECT_EQ(failed, Verdicts({"rank 1 on node2 and rank 3 on node4"}));
}

TEST(PairRounds, MeetOnceAndNeverTwoAtATime) {
  for (const auto& [n_nodes, ranks_per_node] : {std::pair(1, 5), {2, 2}, {3, 2}, {5, 3}, {4, 1}}) {
    const std::vector<Place> places = places_on(n_nodes, ranks_per_node);
    std::set<std::pair<int, int>> met;
    for (const std::vector<int>& peers : pair_rounds(places, 1000)) {
      for (int rank = 0; rank < n_nodes * ranks_per_node; ++rank) {
        const int peer = peers[static_cast<std::size_t>(rank)];
        if (peer < 0) continue;
        ASSERT_EQ(peers[static_cast<std::size_t>(peer)], rank);
        if (rank > peer) continue;
        EXPECT_TRUE(met.emplace(rank, peer).second) << rank << " and " << peer;
      }
    }
    const int inside = n_nodes * ranks_per_node * (ranks_per_node - 1) / 2;
    const int between = ranks_per_node * n_nodes * (n_nodes - 1) / 2;  // pairs of ranks with the same local rank
    EXPECT_EQ(static_cast<int>(met.size()), inside + between) << n_nodes << " x " << ranks_per_node;
  }
}
TEST(PairRounds, AreLimited) { EXPECT_EQ(pair_rounds(places_on(1, 20), 5).size(), 5U); }

}  // namespace
}  // namespace lockstep::doctor

// The verdicts on what ranks exchange (links.h).
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "base/numbers.h"
#include "doctor/links.h"
#include "doctor/thresholds.h"

namespace lockstep::doctor {
namespace {

using comm::LinkRate;

bool is_tcp(const Interface& interface) { return interface.kind != "InfiniBand" && interface.kind != "RoCE"; }

/// The interfaces that have sent a substantial part of the bytes.
std::vector<Interface> in_use(const LinkFacts& facts) {
  std::vector<Interface> used;
  for (const Interface& interface : facts.interfaces)
    if (interface.sent_bytes >= kInterfaceInUse * facts.expected_sent_bytes) used.push_back(interface);
  // The same bytes can count twice: those of IP over InfiniBand also at the card, and those of a bridge also at its
  // port.
  return used;
}

/// The rate at which a node can send to others.
LinkRate network_of(const LinkFacts& facts) {
  LinkRate rate;
  for (const Interface& interface : in_use(facts)) {
    const double usable =
        is_tcp(interface) ? std::min(interface.bytes_per_second, kTcpBytesPerSecond) : interface.bytes_per_second;
    rate.name += fmt::format("{}{}", rate.name.empty() ? "" : " and ", interface.name);
    rate.bytes_per_second = std::max(rate.bytes_per_second, usable);
  }
  return rate;
}

/// The bus bandwidth that an all-reduce between the devices of a node should reach. In host memory, each of n ranks
/// reads and writes the size of the array once, with one thread. The bus bandwidth is therefore at most (n - 1) / n of
/// the rate of the slowest rank (reads and writes, measured on all ranks at once). Half of that is usual, since a write
/// to memory also reads it.
LinkRate inside_node(const std::vector<DeviceFacts>& devices, int n_ranks) {
  const DeviceFacts& first = devices[0];
  if (first.pci_bus.empty()) {
    const auto rate = [](const DeviceFacts& device) { return device.memory_rate.value_or(0); };
    const double slowest = rate(*std::ranges::min_element(devices, {}, rate)), n = n_ranks;
    return {.bytes_per_second = slowest / 2 * (n - 1) / n, .name = "memory"};
  }
  return comm::device_link(first.health);
}

Check check_latency(const AllReduceTime& time) {
  return {.name = "all-reduce 8 B",
          .scope = time.where,
          .status = status_of(time.seconds > kLatencyFailsSeconds, time.seconds > kLatencyWarnsSeconds),
          .value = fmt::format("{} us", three_digits(1e6 * time.seconds)),
          .expected = fmt::format("at most {} us", three_digits(1e6 * kLatencyWarnsSeconds)),
          .remedy =
              "Small messages are slow: look for more ranks than processors, for other load, and for a network "
              "other than the fast one (OMPI_MCA_btl_tcp_if_include, NCCL_SOCKET_IFNAME)."};
}

Check check_bandwidth(const AllReduceTime& time, const LinkRate& link, bool is_network) {
  const double busbw = time.bus_bandwidth();
  Check check{
      .name = time.size_bytes < 1e9 ? fmt::format("all-reduce {:.0f} MB", time.size_bytes / 1e6)
                                    : fmt::format("all-reduce {:.0f} GB", time.size_bytes / 1e9),
      .scope = time.where,
      .value = fmt::format("algbw {:.3g} GB/s, busbw {:.3g} GB/s", time.algorithm_bandwidth() / 1e9, busbw / 1e9)};
  if (link.bytes_per_second == 0) return check;
  check.expected = fmt::format("busbw at least {:.3g} GB/s ({})", kLinkWarns * link.bytes_per_second / 1e9, link.name);
  const double part = busbw / link.bytes_per_second;
  check.status = status_of(part < kLinkFails, part < kLinkWarns);
  if (check.status == Status::pass) return check;
  check.times_slower = link.bytes_per_second / busbw;
  check.remedy =
      fmt::format("{} should give {} GB/s. {}", link.name, three_digits(link.bytes_per_second / 1e9),
                  is_network ? "Look at the pairs of ranks (without --quick), and choose the fast network with "
                               "OMPI_MCA_btl_tcp_if_include, or NCCL_SOCKET_IFNAME and NCCL_IB_HCA."
                             : "Look at the other load, the binding of the processors and, for GPUs, at `lockstep "
                               "gpu-info`, which lists the GPUs that reach each other's memory.");
  return check;
}

Check check_interface(const std::string& host, const LinkFacts& facts) {
  const std::vector<Interface> used = in_use(facts);
  Check check{.name = "network", .scope = host};
  if (used.empty()) {
    check.status = Status::unknown;
    check.value = "not found";
    check.remedy = "No interface has counted the bytes of the all-reduces, as in some containers.";
    return check;
  }
  for (const Interface& interface : used) check.value += (check.value.empty() ? "" : "; ") + text_of(interface);
  const double most = std::ranges::max(used, {}, &Interface::bytes_per_second).bytes_per_second;
  const Interface fastest = std::ranges::max(facts.interfaces, {}, &Interface::bytes_per_second);
  check.expected = fmt::format("the fastest, {}", fastest.name);
  check.status = status_of(false, most < fastest.bytes_per_second);
  check.remedy = fmt::format(
      "{} is faster ({}): select it with OMPI_MCA_btl_tcp_if_include, UCX_NET_DEVICES, or NCCL_SOCKET_IFNAME and "
      "NCCL_IB_HCA.",
      fastest.name, comm::gigabits(fastest.bytes_per_second));
  return check;
}

Check check_clock(const std::string& host, const LinkFacts& facts) {
  const double skew = std::abs(facts.clock_skew_seconds), surely = skew - facts.clock_uncertainty_seconds;
  const bool warns = surely > kClockSkewWarnsSeconds;
  const double within_ms = 1e3 * std::max(facts.clock_uncertainty_seconds, surely);
  return {.name = "time of day",
          .scope = host,
          .status = status_of(surely > kClockSkewFailsSeconds, warns),
          .value = warns ? fmt::format("{} s {} rank 0", three_digits(skew),
                                       facts.clock_skew_seconds > 0 ? "ahead of" : "behind")
                         : fmt::format("within {:.2g} ms", within_ms),
          .expected = fmt::format("within {} s of rank 0", kClockSkewWarnsSeconds),
          .remedy = "The clock of this node is wrong: ask the operators to run chronyd or ntpd on it.",
          .number = warns ? std::nullopt : std::optional(within_ms),
          .unit = warns ? "" : "ms"};
}

/// The nodes whose links are all slow compared with the median. Empty if this is so for all nodes.
std::vector<int> slow_nodes(const std::vector<Place>& places, const std::vector<RankPair>& pairs, double middle) {
  std::map<int, double> best;  // of each node
  for (const RankPair& pair : pairs)
    for (const int rank : {pair.a, pair.b}) {
      double& rate = best[places[static_cast<std::size_t>(rank)].node];
      rate = std::max(rate, pair.bytes_per_second);
    }
  std::vector<int> slow;
  for (const auto& [node, rate] : best)
    if (rate < kPairWarns * middle) slow.push_back(node);
  return slow.size() < best.size() ? slow : std::vector<int>();
}

void check_pairs(const std::vector<Place>& places, const std::vector<RankPair>& pairs, const std::string& kind,
                 const LinkRate& link, std::vector<Check>& out) {
  std::vector<double> rates;
  for (const RankPair& pair : pairs) rates.push_back(pair.bytes_per_second);
  const double middle = median(rates);
  const std::vector<int> slow = link.bytes_per_second > 0 ? slow_nodes(places, pairs, middle) : std::vector<int>();
  for (const RankPair& pair : pairs) {
    const Place &a = places[static_cast<std::size_t>(pair.a)], &b = places[static_cast<std::size_t>(pair.b)];
    const double of_median = pair.bytes_per_second / middle;
    const double of_link = link.bytes_per_second > 0 ? pair.bytes_per_second / link.bytes_per_second : 1;
    const bool warns = of_median < kPairWarns || of_link < kLinkWarns;
    Check check{.name = "pair " + kind,
                .scope = rank_name(a) + " and " + rank_name(b),
                .status = status_of(of_median < kPairFails || of_link < kLinkFails, warns),
                .value = fmt::format("{:.3g} GB/s", pair.bytes_per_second / 1e9),
                .expected = fmt::format("at least {:.3g} GB/s",
                                        std::max(kPairWarns * middle, kLinkWarns * link.bytes_per_second) / 1e9),
                .number = pair.bytes_per_second / 1e9,
                .unit = "GB/s"};
    if (warns) {
      check.times_slower = 1 / std::min(of_median, of_link);
      const auto is_slow = [&](const Place& place) { return std::ranges::find(slow, place.node) != slow.end(); };
      check.remedy = is_slow(a) != is_slow(b)
                         ? fmt::format(
                               "All links of {} are slow: check its network interface and cable, or leave it "
                               "out (sbatch --exclude={}).",
                               is_slow(a) ? a.host : b.host, is_slow(a) ? a.host : b.host)
                         : "This link is slow: check the interfaces and cables of both nodes and the switch between "
                           "them, or leave one of them out (sbatch --exclude).";
    }
    out.push_back(std::move(check));
  }
}

}  // namespace

std::vector<Check> check_links(const std::vector<Place>& places, const std::vector<LinkFacts>& links,
                               const std::vector<DeviceFacts>& devices) {
  std::vector<Check> out;
  if (links.size() < 2) return out;
  const bool has_nodes = std::ranges::any_of(places, [](const Place& place) { return place.node > 0; });
  out.push_back({.name = "transport", .scope = "all ranks", .value = links[0].transport});
  LinkRate network;  // of the slowest node
  for (std::size_t r = 0; r < links.size() && has_nodes; ++r) {
    if (places[r].local_rank != 0) continue;
    add(out, check_interface(places[r].host, links[r]));
    const LinkRate mine = network_of(links[r]);
    if (network.bytes_per_second == 0 ||
        (mine.bytes_per_second > 0 && mine.bytes_per_second < network.bytes_per_second))
      network = mine;
  }
  constexpr double kSmall = 1e6;
  for (const AllReduceTime& time : links[0].times) {
    const bool crosses = has_nodes && time.n_ranks == static_cast<int>(places.size());
    add(out, time.size_bytes < kSmall
                 ? check_latency(time)
                 : check_bandwidth(time, crosses ? network : inside_node(devices, time.n_ranks), crosses));
  }
  std::vector<RankPair> inside, between;
  for (const LinkFacts& facts : links)
    for (const RankPair& pair : facts.pairs)
      (places[static_cast<std::size_t>(pair.a)].node == places[static_cast<std::size_t>(pair.b)].node ? inside
                                                                                                      : between)
          .push_back(pair);
  check_pairs(places, inside, "in a node", {}, out);
  check_pairs(places, between, "between nodes", network, out);
  for (std::size_t r = 0; r < links.size() && has_nodes; ++r)
    if (places[r].local_rank == 0 && places[r].rank != 0) add(out, check_clock(places[r].host, links[r]));
  return out;
}

}  // namespace lockstep::doctor

#include "comm/traffic.h"

#include <algorithm>

#include "comm/device_exchange.h"

namespace lockstep::comm {
namespace {

double bytes_of(const Bucket& bucket, DType type) {
  return static_cast<double>(bucket.n_elements) * static_cast<double>(size_bytes(type));
}

}  // namespace

double exchanged_bytes(std::span<const Bucket> buckets) {
  double sum = 0;
  for (const Bucket& bucket : buckets) sum += bytes_of(bucket, bucket.wire);
  return sum;
}

Traffic traffic_between_nodes(const Topology& topology, std::span<const Bucket> buckets, DType weights) {
  if (topology.n_nodes() < 2) return {};
  const double n_nodes = topology.n_nodes(), n_ranks = topology.n_ranks();
  std::size_t largest = 0, smallest = topology.nodes[0].size();
  for (const std::vector<int>& ranks : topology.nodes) {
    largest = std::max(largest, ranks.size());
    smallest = std::min(smallest, ranks.size());
  }
  const auto local = static_cast<double>(largest);
  const double among_nodes = (n_nodes - 1) / n_nodes, among_ranks = (n_ranks - 1) / n_ranks;
  Traffic traffic;
  const auto add = [&](double per_node, double per_rank) {
    traffic.per_node += per_node;
    traffic.per_rank += per_rank;
  };
  const auto add_divided = [&](double per_node) { add(per_node, per_node / local); };
  for (const Bucket& bucket : buckets) {
    const double sum_bytes = bytes_of(bucket, bucket.wire), gathered_bytes = bytes_of(bucket, weights);
    if (topology.transport != Transport::nccl) {
      const double of_leader = bucket.is_sharded() ? among_nodes * ((1 + 1 / n_nodes) * sum_bytes + gathered_bytes)
                                                   : 2 * among_nodes * sum_bytes;
      add(of_leader, of_leader);
      continue;
    }
    const bool is_narrow = bucket.wire != DType::fp32;
    if (is_narrow && device_exchange_plan(topology).has_levels()) {
      add_divided(2 * among_nodes * sum_bytes);
    } else if (is_narrow || topology.is_tree) {
      // A rank on the smallest node sends to the most ranks on other nodes. The largest node has the most ranks that
      // send.
      const double from_largest = 2 * (n_ranks - local) / n_ranks * sum_bytes * local,
                   from_rank = 2 * (n_ranks - static_cast<double>(smallest)) / n_ranks * sum_bytes;
      add(from_largest, from_rank);
    } else {
      add_divided((bucket.is_sharded() ? 1 : 2) * among_ranks * sum_bytes);
    }
    if (bucket.is_sharded()) add_divided(among_ranks * gathered_bytes);
  }
  return traffic;
}

}  // namespace lockstep::comm

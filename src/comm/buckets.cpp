#include "comm/buckets.h"

#include <algorithm>
#include <span>
#include <utility>

#include "comm/device_exchange.h"
#include "lockstep/error.h"

namespace lockstep::comm {

namespace {

/// The number of parts of nearly equal size into which a tensor is divided if it is larger than a bucket. 1: it is not
/// divided.
std::size_t n_parts(const GradientTensor& tensor, std::size_t bucket_bytes) {
  const std::size_t most = std::max<std::size_t>(tensor.n_elements / kGranule, 1);
  return std::clamp<std::size_t>(tensor.n_elements * size_bytes(tensor.dtype) / std::max<std::size_t>(bucket_bytes, 1),
                                 1, most);
}

std::size_t round_to_granule(std::size_t n_elements) { return (n_elements + kGranule / 2) / kGranule * kGranule; }

/// The end of a shard of `bucket` that should ideally end at element `target` of the arena: the nearest place that does
/// not split a granule of a tensor. `tensors` are those of the bucket.
std::size_t end_of_shard(std::span<const GradientTensor> tensors, const Bucket& bucket, std::size_t target) {
  for (const GradientTensor& tensor : tensors) {
    if (target < tensor.begin) return tensor.begin;  // in the padding before it
    const std::size_t end = std::min(tensor.begin + tensor.n_elements, bucket.end());
    if (target >= end) continue;
    const std::size_t rounded = tensor.begin + round_to_granule(target - tensor.begin);
    if (rounded < end) return std::max(rounded, bucket.begin);
    const bool is_last = &tensor == &tensors.back() || end == bucket.end();
    return is_last ? bucket.end() : (&tensor + 1)->begin;
  }
  return bucket.end();
}

void divide(Bucket& bucket, std::span<const GradientTensor> tensors, int n_shards) {
  const auto n = static_cast<std::size_t>(n_shards);
  bucket.shard_bounds.push_back(0);
  for (std::size_t r = 1; r < n; ++r)
    bucket.shard_bounds.push_back(end_of_shard(tensors, bucket, bucket.begin + bucket.n_elements * r / n) -
                                  bucket.begin);
  bucket.shard_bounds.push_back(bucket.n_elements);
}

}  // namespace

std::vector<Bucket> make_buckets(const std::vector<GradientTensor>& tensors, std::size_t bucket_bytes, int n_shards) {
  std::vector<Bucket> buckets;
  std::vector<std::size_t> first;  // the index of each bucket's first tensor
  const auto open = [&](std::size_t i, std::size_t begin) {
    first.push_back(i);
    Bucket& bucket = buckets.emplace_back();
    bucket.begin = begin;
    bucket.dtype = tensors[i].dtype;
    bucket.wire = tensors[i].wire;
    bucket.first_name = tensors[i].name;
  };
  const auto extend = [&](std::size_t i, std::size_t end) {
    buckets.back().n_elements = end - buckets.back().begin;
    buckets.back().last_tensor = static_cast<int>(i);
    buckets.back().last_name = tensors[i].name;
  };
  bool is_open = false;
  std::size_t end = 0;  // of the previous tensor
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const GradientTensor& tensor = tensors[i];
    require(tensor.begin >= end, ErrorCode::internal, "gradient {} begins at {}, but the previous one ends at {}",
            tensor.name, tensor.begin, end);
    end = tensor.begin + tensor.n_elements;
    if (const std::size_t parts = n_parts(tensor, bucket_bytes); parts > 1) {
      for (std::size_t part = 0; part < parts; ++part) {
        const auto begin_of = [&](std::size_t number) {
          return tensor.begin + round_to_granule(tensor.n_elements * number / parts);
        };
        open(i, begin_of(part));
        extend(i, part + 1 == parts ? end : begin_of(part + 1));
      }
      is_open = false;
      continue;
    }
    is_open = is_open && buckets.back().dtype == tensor.dtype && buckets.back().wire == tensor.wire &&
              tensors[first.back()].can_be_sharded == tensor.can_be_sharded;
    if (!is_open) open(i, tensor.begin);
    extend(i, end);
    is_open = buckets.back().size_bytes() < bucket_bytes;
  }
  for (std::size_t b = 0; b < buckets.size() && n_shards > 1; ++b) {
    if (!tensors[first[b]].can_be_sharded) continue;
    const auto n_tensors = static_cast<std::size_t>(buckets[b].last_tensor) + 1 - first[b];
    divide(buckets[b], std::span(tensors).subspan(first[b], n_tensors), n_shards);
  }
  return buckets;
}

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
    const bool is_narrow = bucket.wire != bucket.dtype;
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

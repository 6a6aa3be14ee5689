#include "comm/buckets.h"

#include <algorithm>
#include <span>
#include <utility>

#include "comm/device_exchange.h"
#include "lockstep/error.h"

namespace lockstep::comm {

namespace {

/// Cuts a part of the arena whose tensors are sent in the same way.
class Cutter {
 public:
  /// `unit`: buckets consist of that many elements, or a multiple.
  Cutter(std::vector<Bucket>& buckets, const std::vector<GradientTensor>& tensors, std::size_t bucket_bytes,
         int n_shards, std::size_t unit)
      : buckets_(buckets), tensors_(tensors), bucket_bytes_(bucket_bytes), n_shards_(n_shards), unit_(unit) {}

  /// The elements of `part` that belong to the tensors from `first` on.
  void cut(std::size_t first, const ElementRange& part) {
    begin_ = part.begin;
    std::size_t end = begin_;
    for (std::size_t i = first; i < tensors_.size() && tensors_[i].begin < part.end(); ++i) {
      const std::size_t n_parts = parts_of(i);
      const bool is_border = unit_ > 1 && i > first && tensors_[i].unit != tensors_[i - 1].unit;
      if (n_parts > 1 || is_border) close(end);
      is_shared_ = (is_shared_ || is_border) && end > begin_;
      if (begin_ == end && unit_ == 1) begin_ = std::max(begin_, tensors_[i].begin);
      end = std::min(tensors_[i].begin + tensors_[i].n_elements, part.end());
      if (is_shared_ && end - begin_ >= unit_) {
        close(begin_ + unit_);
        is_shared_ = false;
      }
      for (std::size_t left = n_parts; left > 1; --left) close(begin_ + rounded((end - begin_) / left));
      if (n_parts > 1 || (end - begin_) * size_bytes(tensors_[i].dtype) >= bucket_bytes_) close(end);
    }
    close(part.end());
  }

 private:
  /// The number of buckets of nearly equal size into which a tensor is divided.
  std::size_t parts_of(std::size_t i) const {
    const GradientTensor& tensor = tensors_[i];
    const std::size_t most = std::max<std::size_t>(tensor.n_elements / std::max(unit_, kTileElements), 1);
    return std::clamp<std::size_t>(
        tensor.n_elements * size_bytes(tensor.dtype) / std::max<std::size_t>(bucket_bytes_, 1), 1, most);
  }

  /// The parts of a tensor consist of whole tiles, too.
  std::size_t rounded(std::size_t n_elements) const {
    const std::size_t unit = std::max(unit_, kTileElements);
    return (n_elements + unit / 2) / unit * unit;
  }

  /// The bucket that has begun ends at the last whole unit before `end`, unless it would be empty.
  void close(std::size_t end) {
    const std::size_t n_elements = (end - begin_) / unit_ * unit_;
    if (n_elements == 0) return;
    const auto of = [this](std::size_t element) {  // the last tensor that begins before it, or there
      return std::ranges::upper_bound(tensors_, element, {}, &GradientTensor::begin) - 1 - tensors_.begin();
    };
    const auto first = static_cast<std::size_t>(of(begin_)),
               last = static_cast<std::size_t>(of(begin_ + n_elements - 1));
    buckets_.push_back({.begin = begin_,
                        .n_elements = n_elements,
                        .dtype = tensors_[first].dtype,
                        .wire = tensors_[first].wire,
                        .last_tensor = static_cast<int>(last),
                        .first_name = tensors_[first].name,
                        .last_name = tensors_[last].name,
                        .n_shards = n_shards_});
    begin_ += n_elements;
  }

  std::vector<Bucket>& buckets_;
  const std::vector<GradientTensor>& tensors_;
  const std::size_t bucket_bytes_;
  const int n_shards_;
  const std::size_t unit_;
  std::size_t begin_ = 0;   // of the next bucket
  bool is_shared_ = false;  // the next bucket begins with the end of another unit
};

}  // namespace

std::vector<Bucket> make_buckets(const std::vector<GradientTensor>& tensors, std::size_t bucket_bytes, int n_shards) {
  std::vector<Bucket> buckets;
  std::size_t end = 0;  // of the previous tensor
  for (const GradientTensor& tensor : tensors) {
    require(tensor.begin >= end, ErrorCode::internal, "gradient {} begins at {}, but the previous one ends at {}",
            tensor.name, tensor.begin, end);
    end = tensor.begin + tensor.n_elements;
  }
  for (std::size_t first = 0, last = 0; first < tensors.size(); first = last) {
    const GradientTensor& kind = tensors[first];
    while (last < tensors.size() && tensors[last].dtype == kind.dtype && tensors[last].wire == kind.wire &&
           tensors[last].can_be_sharded == kind.can_be_sharded)
      ++last;
    const std::size_t begin = kind.begin, n = tensors[last - 1].begin + tensors[last - 1].n_elements - begin;
    const std::size_t unit = static_cast<std::size_t>(n_shards) * kTileElements;
    const std::size_t n_sharded = kind.can_be_sharded && n_shards > 1 ? n / unit * unit : 0;
    if (n_sharded > 0) Cutter(buckets, tensors, bucket_bytes, n_shards, unit).cut(first, {begin, n_sharded});
    while (first < last && tensors[first].begin + tensors[first].n_elements <= begin + n_sharded) ++first;
    if (n_sharded < n) Cutter(buckets, tensors, bucket_bytes, 1, 1).cut(first, {begin + n_sharded, n - n_sharded});
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

Traffic traffic_between_nodes(const Topology& topology, std::span<const Bucket> buckets, int n_sums,
                              double gathered_bytes) {
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
  if (topology.transport != Transport::nccl)
    add(among_nodes * gathered_bytes, among_nodes * gathered_bytes);
  else
    add_divided(among_ranks * gathered_bytes);
  for (const Bucket& bucket : buckets) {
    const double sum_bytes = n_sums * bytes_of(bucket, bucket.wire);
    const double n_passes = bucket.is_sharded() ? 1 : 2;
    if (topology.transport != Transport::nccl) {
      add(n_passes * among_nodes * sum_bytes, n_passes * among_nodes * sum_bytes);
      continue;
    }
    const bool is_narrow = bucket.wire != bucket.dtype;
    if (is_narrow && device_exchange_plan(topology).has_levels()) {
      add_divided(n_passes * among_nodes * sum_bytes);
    } else if (is_narrow || topology.is_tree) {
      // A rank on the smallest node sends to the most ranks on other nodes. The largest node has the most ranks that
      // send.
      const double from_largest = n_passes * (n_ranks - local) / n_ranks * sum_bytes * local,
                   from_rank = n_passes * (n_ranks - static_cast<double>(smallest)) / n_ranks * sum_bytes;
      add(from_largest, from_rank);
    } else {
      add_divided(n_passes * among_ranks * sum_bytes);
    }
  }
  return traffic;
}

}  // namespace lockstep::comm

// With train.shard=parameters (ZeRO-3): where the weights that ops read are stored, and when they are gathered.
//
// A rank stores its shards of the weights. The weights of a unit, such as a layer (graph::ParameterTable::begin_unit),
// are gathered before the first node that reads them, in the forward pass and again in the backward pass, while the
// unit before it is computed. Their memory is then used for other units:
//
//   forward   layer 1 | layer 2 | layer 3 | ...     backward   ... | layer 3 | layer 2 | layer 1
//   gathers   layer 2 | layer 3 | layer 4 | ...                ... | layer 2 | layer 1 |
//
// Weights of buckets with shards are gathered bucket by bucket: those of a bucket that two units share, for both.
// Frozen weights of a base, which are in no buckets, are divided unit by unit. What no bucket with shards has is small,
// and stored by every rank, as are parameters that ops read in fp32 although they compute in 16 bits.
#pragma once

#include <cstddef>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "comm/buckets.h"
#include "graph/graph.h"
#include "graph/shard.h"

namespace lockstep::train {

/// What one all-gather has.
struct GatheredPart {
  ElementRange range{};  // of the arena; empty if it has no gradients
  DType dtype = DType::fp32;
  std::size_t n_elements = 0;  // of all shards
  std::size_t offset = 0;      // in the memory of the unit: bytes
  std::size_t stored = 0;      // of this rank's shard in the memory that stores it: bytes
  bool is_nf4 = false;         // matrices in NF4, counted as fp32 numbers; they have a memory of their own
};

struct WeightUnit {
  std::string name;  // of its first parameter
  std::vector<GatheredPart> parts{};
  ElementRange rest{};                           // of the arena: the end of the last tensor, if every rank stores it,
  std::size_t rest_stored = 0, rest_offset = 0;  // and where: bytes
  std::size_t offset = 0, size_bytes = 0;        // in the memory of gathered weights
};

/// A part of the execution order of a graph in which the weights of a unit are used.
struct UnitUse {
  std::size_t unit = 0;
  std::size_t gathered = 0;         // the entry before which the gather starts
  std::size_t first = 0, last = 0;  // the entries that read the weights
};

class WeightUnits {
 public:
  /// Every rank has all weights.
  explicit WeightUnits(const graph::ParameterTable& table) : stored_(graph::StoredWeights::all(table)) {}
  /// `dtype`: that in which ops read weights.
  WeightUnits(const graph::ParameterTable& table, DType dtype, const graph::Shard& shard,
              std::span<const comm::Bucket> buckets, int rank, int n_ranks);
  /// Places the units in memory. The graphs run one after another.
  void place(std::span<const graph::Graph* const> graphs);

  const graph::StoredWeights& stored() const { return stored_; }
  const std::vector<WeightUnit>& units() const { return units_; }
  /// Of gathered weights.
  std::size_t size_bytes() const { return size_bytes_; }
  /// Where a parameter is in the memory of gathered weights: bytes. No value if it is not gathered.
  std::optional<std::size_t> place_of(graph::ParameterId id) const;
  /// In the order in which units are gathered.
  std::vector<UnitUse> uses_in(const graph::Graph& graph) const;
  /// The bytes of these gathers.
  double gathered_bytes(const graph::Graph& graph) const;

 private:
  struct Place {
    std::size_t unit = 0, offset = 0;  // bytes in the unit
  };
  void add_trained(const graph::ParameterTable& table, const graph::Shard& shard,
                   std::span<const comm::Bucket> buckets);
  void add_frozen(const graph::ParameterTable& table, bool is_nf4);
  WeightUnit& unit_of(const graph::Parameter& parameter);

  DType dtype_ = DType::fp32;
  int rank_ = 0, n_ranks_ = 1;
  graph::StoredWeights stored_;
  std::vector<WeightUnit> units_;
  std::map<int, std::size_t> numbers_;  // of the units of parameters
  std::map<graph::ParameterId, Place> places_;
  std::size_t size_bytes_ = 0;
};

}  // namespace lockstep::train

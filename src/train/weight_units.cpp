#include "train/weight_units.h"

#include <algorithm>

#include "graph/memory_plan.h"

namespace lockstep::train {

using graph::Parameter;
using graph::ParameterTable;

WeightUnits::WeightUnits(const ParameterTable& table, DType dtype, const graph::Shard& shard,
                         std::span<const comm::Bucket> buckets, int rank, int n_ranks)
    : dtype_(dtype), rank_(rank), n_ranks_(n_ranks) {
  stored_.pieces.assign(shard.own_pieces().begin(), shard.own_pieces().end());
  const std::size_t whole = shard.whole_begin(), n_whole = table.n_with_masters() - whole;
  stored_.pieces.push_back({whole, n_whole, shard.whole_stored()});
  stored_.n_elements = shard.whole_stored() + n_whole;
  add_trained(table, shard, buckets);
  if (dtype_ != DType::fp32) add_frozen(table, /*is_nf4=*/false);
  add_frozen(table, /*is_nf4=*/true);
}

WeightUnit& WeightUnits::unit_of(const Parameter& parameter) {
  const auto [found, is_new] = numbers_.try_emplace(parameter.unit, units_.size());
  if (is_new) units_.push_back({.name = parameter.name});
  return units_[found->second];
}

namespace {

/// The next parameters of the list that belong to one unit, from `first` on.
std::span<const graph::ParameterId> next_of_unit(const ParameterTable& table, std::span<const graph::ParameterId> ids) {
  const auto end = std::ranges::find_if(ids, [&](int id) { return table[id].unit != table[ids[0]].unit; });
  return ids.first(static_cast<std::size_t>(end - ids.begin()));
}

}  // namespace

void WeightUnits::add_trained(const ParameterTable& table, const graph::Shard& shard,
                              std::span<const comm::Bucket> buckets) {
  const std::size_t whole = shard.whole_begin(), element = lockstep::size_bytes(dtype_);
  std::vector<graph::ParameterId> sharded;
  for (const graph::ParameterId id : table.order())
    if (table[id].begin < whole) sharded.push_back(id);
  for (std::span<const graph::ParameterId> left = sharded; !left.empty();) {
    const std::span<const graph::ParameterId> ids = next_of_unit(table, left);
    left = left.subspan(ids.size());
    const std::size_t begin = table[ids.front()].begin, end = table[ids.back()].begin + table[ids.back()].n_elements;
    WeightUnit& unit = unit_of(table[ids.front()]);
    std::size_t memory = graph::aligned(unit.size_bytes), first = begin;  // where the first bucket begins
    for (std::size_t i = 0; i < shard.own_pieces().size(); ++i) {
      const comm::Bucket& bucket = buckets[i];
      if (bucket.end() <= begin || bucket.begin >= end) continue;
      if (bucket.begin <= begin) first = bucket.begin;
      unit.parts.push_back({.range = {bucket.begin, bucket.n_elements},
                            .dtype = dtype_,
                            .n_elements = bucket.n_elements,
                            .offset = memory + (bucket.begin - first) * element,
                            .stored = shard.own_pieces()[i].stored * element});
      unit.size_bytes = unit.parts.back().offset + bucket.n_elements * element;
    }
    for (const graph::ParameterId id : ids)
      places_[id] = {numbers_.at(table[id].unit), memory + (table[id].begin - first) * element};
    if (end <= whole) continue;
    unit.rest_stored = shard.whole_stored() * element;
    unit.rest_offset = memory + (whole - first) * element;
    unit.rest = {whole, end - whole};
    unit.size_bytes = unit.rest_offset + unit.rest.n_elements * element;
  }
}

// Bytes are counted for NF4, and elements otherwise.
void WeightUnits::add_frozen(const ParameterTable& table, bool is_nf4) {
  std::vector<graph::ParameterId> frozen;
  for (std::size_t i = 0; i < table.parameters().size(); ++i) {
    const Parameter& p = table.parameters()[i];
    if (is_nf4 ? p.is_in_nf4 : !p.has_master && !p.is_in_nf4) frozen.push_back(static_cast<graph::ParameterId>(i));
  }
  const std::size_t element = is_nf4 ? 1 : lockstep::size_bytes(dtype_), granule = graph::kTensorAlignment / element;
  const auto n_ranks = static_cast<std::size_t>(n_ranks_), rank = static_cast<std::size_t>(rank_);
  const auto range = [&](const Parameter& p) {
    return is_nf4 ? ElementRange{p.nf4_begin, p.nf4.size_bytes} : ElementRange{p.begin, p.n_elements};
  };
  for (std::span<const graph::ParameterId> left = frozen; !left.empty();) {
    const std::span<const graph::ParameterId> ids = next_of_unit(table, left);
    left = left.subspan(ids.size());
    const std::size_t begin = range(table[ids.front()]).begin, end = range(table[ids.back()]).end();
    const std::size_t n_granules = (end - begin + granule - 1) / granule;
    const std::size_t length = (n_granules + n_ranks - 1) / n_ranks * granule;  // of a shard
    std::vector<graph::ShardPiece>& pieces = is_nf4 ? stored_.nf4_pieces : stored_.pieces;
    std::size_t& n_stored = is_nf4 ? stored_.n_nf4_bytes : stored_.n_elements;
    n_stored = (n_stored + granule - 1) / granule * granule;
    const ElementRange mine = overlap({begin + rank * length, length}, {begin, end - begin});
    if (mine.n_elements > 0) pieces.push_back({mine.begin, mine.n_elements, n_stored});
    WeightUnit& unit = unit_of(table[ids.front()]);
    const std::size_t offset = graph::aligned(unit.size_bytes);
    unit.parts.push_back({.dtype = is_nf4 ? DType::fp32 : dtype_,
                          .n_elements = n_ranks * length / (is_nf4 ? sizeof(float) : 1),
                          .offset = offset,
                          .stored = n_stored * element,
                          .is_nf4 = is_nf4});
    unit.size_bytes = offset + n_ranks * length * element;
    n_stored += length;
    for (const graph::ParameterId id : ids)
      places_[id] = {numbers_.at(table[id].unit), offset + (range(table[id]).begin - begin) * element};
  }
}

std::optional<std::size_t> WeightUnits::place_of(graph::ParameterId id) const {
  const auto found = places_.find(id);
  if (found == places_.end()) return std::nullopt;
  return units_[found->second.unit].offset + found->second.offset;
}

// A unit that is read again after one other stays in memory, since its gather would already have started.
std::vector<UnitUse> WeightUnits::uses_in(const graph::Graph& graph) const {
  std::vector<UnitUse> uses;
  const std::vector<graph::Entry>& entries = graph.order().entries();
  for (std::size_t i = 0; i < entries.size(); ++i) {
    graph::Node& node = *graph.nodes()[static_cast<std::size_t>(entries[i].node)];
    if (entries[i].phase == graph::Phase::backward && !node.backward_reads_weights()) continue;
    for (const graph::ParameterUse* parameter : node.parameters()) {
      const auto place = parameter->exists() ? places_.find(parameter->id()) : places_.end();
      if (place == places_.end()) continue;
      const auto newest = uses.end() - std::min<std::ptrdiff_t>(2, std::ssize(uses));
      const auto use = std::find_if(newest, uses.end(), [&](const UnitUse& u) { return u.unit == place->second.unit; });
      if (use != uses.end())
        use->last = i;
      else
        uses.push_back(
            {.unit = place->second.unit, .gathered = uses.empty() ? 0 : uses.back().first, .first = i, .last = i});
    }
  }
  return uses;
}

double WeightUnits::gathered_bytes(const graph::Graph& graph) const {
  double sum = 0;
  for (const UnitUse& use : uses_in(graph))
    for (const GatheredPart& part : units_[use.unit].parts)
      sum += static_cast<double>(part.n_elements * lockstep::size_bytes(part.dtype));
  return sum;
}

void WeightUnits::place(std::span<const graph::Graph* const> graphs) {
  graph::MemoryPlan memory;
  for (const WeightUnit& unit : units_) memory.add(unit.name, unit.size_bytes);
  std::size_t begin = 0;  // the position of the graph's first entry
  for (const graph::Graph* graph : graphs) {
    for (const UnitUse& use : uses_in(*graph)) {
      const auto id = static_cast<graph::TensorId>(use.unit);
      memory.access(id, static_cast<int>(begin + use.gathered), graph::Access::write);
      memory.access(id, static_cast<int>(begin + use.last), graph::Access::read);
    }
    begin += graph->order().entries().size();
  }
  memory.place();
  for (std::size_t i = 0; i < units_.size(); ++i)
    units_[i].offset = memory.info(static_cast<graph::TensorId>(i)).offset;
  size_bytes_ = memory.size_bytes();
}

}  // namespace lockstep::train

#include "graph/parameter_arena.h"

#include <algorithm>
#include <vector>

#include "graph/nf4.h"
#include "lockstep/error.h"
#include "lockstep/ops/step_scalars.h"

namespace lockstep::graph {
namespace {
constexpr std::size_t kRoundedElements = std::size_t{1} << 18;  // at a time: few enough to stay in a cache
}

ParameterArena::ParameterArena(const ParameterTable& table, DType compute_dtype, Backend& backend)
    : ParameterArena(table, compute_dtype, backend, table.n_with_masters(), {}, StoredWeights::all(table), nullptr) {}

ParameterArena::ParameterArena(const ParameterTable& table, DType compute_dtype, Backend& backend,
                               std::size_t n_masters, const Shard& shard, StoredWeights weights,
                               Communicator* communicator)
    : backend_(backend),
      compute_dtype_(compute_dtype),
      n_with_masters_(table.n_with_masters()),
      first_master_(table.n_with_masters() - n_masters),
      shard_(shard),
      weights_(std::move(weights)) {
  const std::size_t last = n_with_masters_ > 0 ? n_with_masters_ - 1 : 0;  // every rank has it
  first_weight_ = last - weights_.at(last);
  const auto allocate = [&](std::size_t size_bytes, bool is_gathered, const std::string& purpose) {
    return communicator && is_gathered ? communicator->allocate(size_bytes, purpose)
                                       : backend.allocate(size_bytes, purpose);
  };
  const bool has_weights = compute_dtype_ != DType::fp32;
  if (weights_.n_nf4_bytes > 0) nf4_weights_ = backend.allocate(weights_.n_nf4_bytes, "weights in NF4");
  masters_ = allocate(n_masters * sizeof(float), !has_weights, "parameters");
  const std::unique_ptr<Stream> stream = backend.make_stream();
  for (const Constant& c : table.constants())
    backend.copy(masters_of(*masters_) + (c.begin - first_master_), c.values.data(), c.values.size() * sizeof(float),
                 *stream);
  stream->synchronize();
  if (!has_weights) return;
  compute_weights_ = allocate(weights_.n_elements * size_bytes(compute_dtype_), true, "weights in the compute type");
  cast_ = backend.make(CastDescription{.from = DType::fp32, .to = compute_dtype_});
}

void ParameterArena::refresh(Stream& stream) {
  if (is_stale_ && cast_) {
    for (const ShardPiece& piece : shard_.own_pieces())
      round(masters() + piece.stored, piece.begin, piece.n_elements, stream);
    const std::size_t whole = shard_.whole_begin();
    round(masters() + shard_.whole_stored(), whole, n_with_masters_ - whole, stream);
  }
  is_stale_ = false;
}

void ParameterArena::write(const Parameter& parameter, std::size_t first, std::span<const float> values,
                           Stream& stream) {
  if (parameter.is_in_nf4) {
    require(first == 0 && values.size() == parameter.n_elements, ErrorCode::internal,
            "a part of {} cannot be quantised", parameter.name);
    return write_nf4(parameter, values, stream);
  }
  if (!parameter.has_master) return write_without_master(parameter.begin + first, values, stream);
  write_masters(parameter.begin + first, values, stream);
}

void ParameterArena::write_masters(std::size_t begin, std::span<const float> values, Stream& stream) {
  backend_.copy(edit() + (begin - first_master_), values.data(), values.size_bytes(), stream);
  stream.synchronize();
}

void ParameterArena::write_nf4(const Parameter& parameter, std::span<const float> values, Stream& stream) {
  std::vector<std::byte> quantised(parameter.nf4.size_bytes);
  for (std::size_t i = 0; i < parameter.parts.size(); ++i) {
    const ParameterPart& part = parameter.parts[i];
    quantize_nf4(values.subspan(part.begin, part.n_elements()), parameter.nf4.matrices[i], quantised);
  }
  for (const ShardPiece& piece : weights_.nf4_pieces) {
    const ElementRange mine = overlap({piece.begin, piece.n_elements}, {parameter.nf4_begin, quantised.size()});
    if (mine.n_elements > 0)
      backend_.copy(static_cast<std::byte*>(nf4_weights_->data()) + piece.stored + (mine.begin - piece.begin),
                    quantised.data() + (mine.begin - parameter.nf4_begin), mine.n_elements, stream);
  }
  stream.synchronize();
}

void ParameterArena::write_without_master(std::size_t begin, std::span<const float> values, Stream& stream) {
  require(compute_weights_ != nullptr && begin >= n_with_masters_, ErrorCode::internal,
          "element {} of the parameters has an fp32 master", begin);
  const std::unique_ptr<Memory> rounded =
      backend_.allocate(std::min(kRoundedElements, values.size()) * sizeof(float), "weights to be rounded");
  for (const ShardPiece& piece : weights_.pieces) {
    const ElementRange mine = overlap({piece.begin, piece.n_elements}, {begin, values.size()});
    for (std::size_t i = mine.begin, n = 0; i < mine.end(); i += n) {
      n = std::min(kRoundedElements, mine.end() - i);
      backend_.copy(rounded->data(), values.data() + (i - begin), n * sizeof(float), stream);
      round(masters_of(*rounded), i, n, stream);
    }
  }
  stream.synchronize();
}

void ParameterArena::round(const float* values, std::size_t begin, std::size_t n_elements, Stream& stream) {
  auto* const target =
      static_cast<std::byte*>(compute_weights_->data()) + stored_weight(begin) * size_bytes(compute_dtype_);
  cast_->apply({.source = values, .target = target, .n_elements = n_elements}, {}, stream);
}

ForwardSizes forward_sizes(std::span<Graph* const> graphs) {
  ForwardSizes most;
  for (const Graph* graph : graphs)
    most = {.activations = std::max(most.activations, graph->memory().size_bytes()),
            .workspace = std::max(most.workspace, graph->workspace_bytes()),
            .exchange = std::max(most.exchange, graph->exchange_bytes()),
            .cache = std::max(most.cache, graph->cache_bytes())};
  return most;
}

ForwardArenas::ForwardArenas(std::span<Graph* const> graphs, const Bindings& parameters, Backend& backend)
    : bindings_(parameters) {
  const auto allocate = [&](const char* name, std::size_t size_bytes) -> std::byte* {
    if (size_bytes == 0) return nullptr;
    return static_cast<std::byte*>(memory_.emplace_back(backend.allocate(size_bytes, name))->data());
  };
  const ForwardSizes sizes = forward_sizes(graphs);
  bindings_.activations = allocate("activations", sizes.activations);
  bindings_.workspace = allocate("workspace", sizes.workspace);
  bindings_.exchange = allocate("loss", sizes.exchange);
  bindings_.cache = allocate("keys and values", sizes.cache);
  bindings_.scalars = reinterpret_cast<StepScalars*>(allocate("scalars", sizeof(StepScalars)));
  for (Graph* graph : graphs) graph->bind(bindings_);
}

}  // namespace lockstep::graph

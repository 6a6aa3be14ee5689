#include "train/parameter_arena.h"

namespace lockstep::train {

ParameterArena::ParameterArena(const StepPlan& plan, Backend& backend, Communicator& communicator)
    : ParameterArena(plan.parameters(), plan.compute_dtype(), backend,
                     {.n_elements = plan.parameters().n_total(), .n_masters = plan.n_masters()}, plan.shard(),
                     plan.shard().is_whole() ? nullptr : &communicator) {}

ParameterArena::ParameterArena(const graph::ParameterTable& table, DType compute_dtype, Backend& backend)
    : ParameterArena(table, compute_dtype, backend, {.n_elements = table.n_total(), .n_masters = table.n_total()}, {},
                     nullptr) {}

ParameterArena::ParameterArena(const graph::ParameterTable& table, DType compute_dtype, Backend& backend,
                               const Sizes& sizes, const Shard& shard, Communicator* gathering)
    : compute_dtype_(compute_dtype),
      n_elements_(sizes.n_elements),
      first_master_(sizes.n_elements - sizes.n_masters),
      shard_(shard) {
  const auto allocate = [&](std::size_t size_bytes, bool is_gathered, const std::string& purpose) {
    return gathering && is_gathered ? gathering->allocate(size_bytes, purpose) : backend.allocate(size_bytes, purpose);
  };
  const bool has_weights = compute_dtype_ != DType::fp32;
  masters_ = allocate(sizes.n_masters * sizeof(float), !has_weights, "parameters");
  const std::unique_ptr<Stream> stream = backend.make_stream();
  for (const graph::Constant& c : table.constants())
    backend.copy_to_device(masters_of(*masters_) + (c.begin - first_master_), c.values.data(),
                           c.values.size() * sizeof(float), *stream);
  stream->synchronize();
  if (!has_weights) return;
  compute_weights_ = allocate(n_elements_ * size_bytes(compute_dtype_), true, "weights in the compute type");
  cast_ = backend.make(CastDescription{.from = DType::fp32, .to = compute_dtype_});
}

void ParameterArena::refresh(Stream& stream) {
  const auto round = [&](std::size_t begin, std::size_t n_elements, std::size_t stored) {
    auto* const target = static_cast<std::byte*>(compute_weights_->data()) + begin * size_bytes(compute_dtype_);
    cast_->apply({.source = masters() + stored, .target = target, .n_elements = n_elements}, {}, stream);
  };
  if (is_stale_ && cast_) {
    for (const ShardPiece& piece : shard_.own_pieces()) round(piece.begin, piece.n_elements, piece.stored);
    const std::size_t whole = shard_.whole_begin();
    round(whole, n_elements_ - whole, shard_.whole_stored());
  }
  is_stale_ = false;
}

}  // namespace lockstep::train

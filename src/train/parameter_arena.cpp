#include "train/parameter_arena.h"

namespace lockstep::train {

ParameterArena::ParameterArena(const StepPlan& plan, Backend& backend)
    : ParameterArena(plan.parameters(), plan.compute_dtype(), backend) {}

ParameterArena::ParameterArena(const graph::ParameterTable& table, DType compute_dtype, Backend& backend)
    : compute_dtype_(compute_dtype), n_elements_(table.n_total()) {
  masters_ = backend.allocate(n_elements_ * sizeof(float), "parameters");
  const std::unique_ptr<Stream> stream = backend.make_stream();
  for (const graph::Constant& c : table.constants())
    backend.copy_to_device(masters_of(*masters_) + c.begin, c.values.data(), c.values.size() * sizeof(float), *stream);
  stream->synchronize();
  if (compute_dtype_ == DType::fp32) return;
  compute_weights_ = backend.allocate(n_elements_ * size_bytes(compute_dtype_), "weights in the compute type");
  cast_ = backend.make(CastDescription{.from = DType::fp32, .to = compute_dtype_});
}

void ParameterArena::refresh(Stream& stream) {
  if (is_stale_ && cast_)
    cast_->apply({.source = masters(), .target = compute_weights_->data(), .n_elements = n_elements_}, {}, stream);
  is_stale_ = false;
}

}  // namespace lockstep::train

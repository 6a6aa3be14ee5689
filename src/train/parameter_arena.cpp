#include "train/parameter_arena.h"

namespace lockstep::train {

ParameterArena::ParameterArena(const StepPlan& plan, Backend& backend)
    : compute_dtype_(plan.compute_dtype()), n_elements_(plan.parameters().n_total()) {
  const MemoryReport memory = plan.memory();
  masters_ = backend.allocate(memory.parameters, "parameters");
  if (compute_dtype_ == DType::fp32) return;
  compute_weights_ = backend.allocate(memory.compute_weights, "weights in the compute type");
  cast_ = backend.make(CastDescription{.from = DType::fp32, .to = compute_dtype_});
}

void ParameterArena::refresh(Stream& stream) {
  if (is_stale_ && cast_)
    cast_->apply({.source = masters(), .target = compute_weights_->data(), .n_elements = n_elements_}, {}, stream);
  is_stale_ = false;
}

}  // namespace lockstep::train

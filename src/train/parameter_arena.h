// The parameters of a replica: fp32 masters with the running statistics, and, where ops compute in bf16 or fp16, the
// weights that they read, which are the masters rounded to that type (DESIGN, decision 17).
//
// Two things write masters. The optimizer rounds what it writes itself. All other writes (initial values, a checkpoint,
// imported weights) go through edit(), and the next refresh() rounds the whole arena once. A replica calls refresh()
// before each pass over a graph, so no reader of the weights finds old ones. Statistics are read as fp32 only: their
// places in the arena of weights are not kept up to date.
#pragma once

#include <cstddef>
#include <memory>

#include "lockstep/backend.h"
#include "lockstep/ops/cast.h"
#include "train/step_plan.h"

namespace lockstep::train {

class ParameterArena {
 public:
  ParameterArena(const StepPlan& plan, Backend& backend);
  /// `table` has its order. Ops compute in `compute_dtype`. The constants have their values, all else is undefined.
  ParameterArena(const graph::ParameterTable& table, DType compute_dtype, Backend& backend);

  const float* masters() const { return masters_of(*masters_); }
  /// In compute_dtype(); null where that is fp32.
  const void* compute_weights() const { return compute_weights_ ? compute_weights_->data() : nullptr; }
  DType compute_dtype() const { return compute_dtype_; }

  /// For the ops of a step's update: the optimizer writes both, and statistics exist in fp32 only.
  struct Update {
    float* masters = nullptr;
    void* compute_weights = nullptr;
  };
  Update update() { return {masters_of(*masters_), compute_weights_ ? compute_weights_->data() : nullptr}; }

  /// For all other writes of masters. Not while another thread calls it.
  float* edit() {
    is_stale_ = true;
    return masters_of(*masters_);
  }
  /// Rounds the masters if they were edited since the last call.
  void refresh(Stream& stream);

 private:
  static float* masters_of(const Memory& memory) { return static_cast<float*>(memory.data()); }

  DType compute_dtype_;
  std::size_t n_elements_;
  std::unique_ptr<Memory> masters_, compute_weights_;  // the second null where ops compute in fp32
  std::unique_ptr<Cast> cast_;                         // likewise
  bool is_stale_ = true;
};

}  // namespace lockstep::train

// A small sum over ranks in the middle of a step, for example of the statistics of a synchronised batch norm. It is one
// entry of the static schedule of collectives. The local values are copied to exchange memory and are not changed.
#pragma once

#include <memory>
#include <string>

#include "graph/graph.h"
#include "lockstep/trace.h"

namespace lockstep::graph {

class ExchangeSum {
 public:
  /// Reserves room for `n` doubles.
  void plan(Graph& graph, Backend& backend, std::string label, std::size_t n) {
    backend_ = &backend;
    label_ = std::move(label);
    n_ = n;
    offset_ = graph.add_exchange(n * sizeof(double));
  }
  void bind(const Bindings& at) {
    ready_ = backend_->make_event();
    done_ = at.communicator->make_event();
  }
  /// The sum over ranks of `local` (n doubles), in exchange memory. Work that is queued on the stream later may read
  /// it.
  const double* sum(const Run& run, const double* local) {
    auto* slot = reinterpret_cast<double*>(run.at.exchange + offset_);
    backend_->copy_to_device(slot, local, n_ * sizeof(double), run.stream);
    ready_->record(run.stream);
    run.at.communicator->all_reduce_async({.data = slot, .n_elements = n_, .dtype = DType::fp64}, *ready_, *done_,
                                          label_);
    const trace::Span span(trace::Kind::wait, label_);
    run.stream.wait(*done_);
    return slot;
  }

 private:
  Backend* backend_ = nullptr;
  std::string label_;
  std::size_t n_ = 0, offset_ = 0;
  std::unique_ptr<Event> ready_, done_;
};

}  // namespace lockstep::graph

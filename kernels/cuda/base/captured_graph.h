// A repeated part of a step as a CUDA graph. It runs eagerly the first two times (libraries load their kernels then),
// is captured the third time, and is one launch from then on. Each kernel keeps the priority of the stream on which it
// was captured. The capture is local to the thread: readers and the checkpoint writer are not affected.
#pragma once

#include "kernels/cuda/base/stream.h"

namespace lockstep::cuda {

struct GraphTraits {
  using Type = cudaGraphExec_t;
  static Type null() { return nullptr; }
  static void close(Type graph) { LOCKSTEP_CUDA_REPORT(cudaGraphExecDestroy(graph)); }
};

class CudaGraph final : public CapturedGraph {
 public:
  bool begin(Stream& stream) override;
  void end(Stream& stream) override;

 private:
  static constexpr int kEagerRuns = 2;
  Handle<GraphTraits> graph_;
  int eager_runs_ = 0;
  bool is_capturing_ = false;
};

}  // namespace lockstep::cuda

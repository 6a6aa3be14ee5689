#include "kernels/cuda/base/repetition.h"

#include "lockstep/error.h"

namespace lockstep::cuda {

bool RecordedRepetition::begin(Stream& stream) {
  require(!is_capturing_, ErrorCode::internal, "a repetition was begun twice: an error ended it while it was recorded");
  if (graph_) {
    LOCKSTEP_CUDA_CHECK(cudaGraphLaunch(graph_.get(), native(stream)));
    return false;
  }
  if (eager_runs_ < kEagerRuns) {
    ++eager_runs_;
    return true;
  }
  LOCKSTEP_CUDA_CHECK(cudaStreamBeginCapture(native(stream), cudaStreamCaptureModeThreadLocal));
  is_capturing_ = true;
  return true;
}

void RecordedRepetition::end(Stream& stream) {
  if (!is_capturing_) return;
  is_capturing_ = false;
  cudaGraph_t graph = nullptr;
  const cudaError_t status = cudaStreamEndCapture(native(stream), &graph);
  require(status == cudaSuccess, ErrorCode::library,
          "CUDA could not record a step as a graph ({}: {}); cuda.graph=false runs it without",
          static_cast<int>(status), cudaGetErrorString(status));
  cudaGraphExec_t executable = nullptr;
  const cudaError_t made = cudaGraphInstantiate(&executable, graph, 0);
  LOCKSTEP_CUDA_REPORT(cudaGraphDestroy(graph));
  LOCKSTEP_CUDA_CHECK(made);
  graph_ = Handle<GraphTraits>(executable);
  LOCKSTEP_CUDA_CHECK(cudaGraphLaunch(executable, native(stream)));
}

}  // namespace lockstep::cuda

#include "kernels/cuda/base/captured_graph.h"

#include "lockstep/error.h"

namespace lockstep::cuda {

bool CudaGraph::begin(Stream& stream) {
  require(!is_capturing_, ErrorCode::internal,
          "a graph is captured again although its first capture has not ended: an error interrupted it");
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

void CudaGraph::end(Stream& stream) {
  if (!is_capturing_) return;
  is_capturing_ = false;
  cudaGraph_t graph = nullptr;
  const cudaError_t status = cudaStreamEndCapture(native(stream), &graph);
  require(status == cudaSuccess, ErrorCode::library,
          "CUDA could not capture a part of the step as a graph ({}: {}). Set cuda.graph=false to train without graphs",
          static_cast<int>(status), cudaGetErrorString(status));
  cudaGraphExec_t executable = nullptr;
  // Without this flag, every kernel of the graph runs with the priority of the stream on which the graph is launched.
  // The kernels of exchanges were captured on a stream of high priority, and must keep this priority.
  const cudaError_t made = cudaGraphInstantiate(&executable, graph, cudaGraphInstantiateFlagUseNodePriority);
  LOCKSTEP_CUDA_REPORT(cudaGraphDestroy(graph));
  LOCKSTEP_CUDA_CHECK(made);
  graph_ = Handle<GraphTraits>(executable);
  LOCKSTEP_CUDA_CHECK(cudaGraphLaunch(executable, native(stream)));
}

}  // namespace lockstep::cuda

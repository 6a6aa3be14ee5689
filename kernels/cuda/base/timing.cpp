#include "kernels/cuda/base/timing.h"

#include <algorithm>
#include <exception>

#include "kernels/cuda/base/stream.h"

namespace lockstep::cuda {

TimingMemory::TimingMemory(std::size_t size_bytes, const CudaContext& context) {
  LOCKSTEP_CUDA_CHECK(cudaSetDevice(context.device));
  const std::size_t n_bytes = std::max<std::size_t>(size_bytes, 1);
  const cudaError_t status = cudaMalloc(&data_, n_bytes);
  if (status != cudaSuccess) (void)cudaGetLastError();  // clears the error, so that the next call does not report it
  LOCKSTEP_CUDA_CHECK(status);
  LOCKSTEP_CUDA_CHECK(cudaMemset(data_, 0x3c, n_bytes));
  LOCKSTEP_CUDA_CHECK(cudaStreamSynchronize(nullptr));
}
TimingMemory::~TimingMemory() { LOCKSTEP_CUDA_REPORT(cudaFree(data_)); }

namespace {

Handle<EventTraits> timing_event() {
  cudaEvent_t event = nullptr;
  LOCKSTEP_CUDA_CHECK(cudaEventCreateWithFlags(&event, cudaEventBlockingSync));
  return Handle<EventTraits>(event);
}

constexpr int kRepetitions = 10;
constexpr double kLaunches = 50e-6;  // seconds by which a single run may exceed a run in a graph

/// Captures kRepetitions runs in one graph. Null if something in them cannot be captured.
Handle<GraphTraits> repeat_in_graph(const std::function<void(Stream&)>& run, CudaStream& stream) {
  LOCKSTEP_CUDA_CHECK(cudaStreamBeginCapture(native(stream), cudaStreamCaptureModeThreadLocal));
  std::exception_ptr failure;
  try {
    for (int i = 0; i < kRepetitions; ++i) run(stream);
  } catch (...) {
    failure = std::current_exception();
  }
  cudaGraph_t graph = nullptr;
  const cudaError_t status = cudaStreamEndCapture(native(stream), &graph);
  if (status != cudaSuccess || failure) (void)cudaGetLastError();
  cudaGraphExec_t executable = nullptr;
  const bool is_captured =
      status == cudaSuccess && !failure &&
      cudaGraphInstantiate(&executable, graph, cudaGraphInstantiateFlagUseNodePriority) == cudaSuccess;
  if (graph) LOCKSTEP_CUDA_REPORT(cudaGraphDestroy(graph));
  if (!is_captured) (void)cudaGetLastError();
  return Handle<GraphTraits>(executable);
}

}  // namespace

double seconds_of(const std::function<void(Stream&)>& run, const CudaContext& context, double best) try {
  LOCKSTEP_CUDA_CHECK(cudaSetDevice(context.device));
  CudaStream stream;
  const Handle<EventTraits> begin = timing_event(), end = timing_event();
  const auto time = [&](const auto& work) {
    LOCKSTEP_CUDA_CHECK(cudaEventRecord(begin.get(), native(stream)));
    work();
    LOCKSTEP_CUDA_CHECK(cudaEventRecord(end.get(), native(stream)));
    LOCKSTEP_CUDA_CHECK(cudaEventSynchronize(end.get()));
    float milliseconds = 0;
    LOCKSTEP_CUDA_CHECK(cudaEventElapsedTime(&milliseconds, begin.get(), end.get()));
    return milliseconds * 1e-3;
  };
  run(stream);  // loads kernels
  stream.synchronize();
  const double once = time([&] { run(stream); });
  if (once > 3 * best + kLaunches) return once;
  const Handle<GraphTraits> graph = repeat_in_graph(run, stream);
  const auto round = [&] {
    return time([&] {
             if (graph) LOCKSTEP_CUDA_CHECK(cudaGraphLaunch(graph.get(), native(stream)));
             for (int i = 0; !graph && i < kRepetitions; ++i) run(stream);
           }) /
           kRepetitions;
  };
  double least = round();
  constexpr int kRounds = 4;
  for (int i = 1; i < kRounds && least < 2 * best; ++i) least = std::min(least, round());
  return least;
} catch (...) {
  (void)cudaGetLastError();  // clears the error of the algorithm that failed
  throw;
}

}  // namespace lockstep::cuda

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
  CudaEvent begin(EventUse::timing), end(EventUse::timing);
  const auto time = [&](const auto& work) {
    begin.record(stream);
    work();
    end.record(stream);
    end.synchronize();
    return end.seconds_since(begin);
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

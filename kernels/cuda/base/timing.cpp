#include "kernels/cuda/base/timing.h"

#include <algorithm>

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

}  // namespace

double seconds_of(const std::function<void(Stream&)>& run, const CudaContext& context, double best) try {
  LOCKSTEP_CUDA_CHECK(cudaSetDevice(context.device));
  CudaStream stream;
  const Handle<EventTraits> begin = timing_event(), end = timing_event();
  const auto once = [&] {
    LOCKSTEP_CUDA_CHECK(cudaEventRecord(begin.get(), native(stream)));
    run(stream);
    LOCKSTEP_CUDA_CHECK(cudaEventRecord(end.get(), native(stream)));
    LOCKSTEP_CUDA_CHECK(cudaEventSynchronize(end.get()));
    float milliseconds = 0;
    LOCKSTEP_CUDA_CHECK(cudaEventElapsedTime(&milliseconds, begin.get(), end.get()));
    return milliseconds * 1e-3;
  };
  run(stream);  // loads kernels
  stream.synchronize();
  double least = once();
  constexpr int kRepetitions = 4;
  for (int i = 0; i < kRepetitions && least < 2 * best; ++i) least = std::min(least, once());
  return least;
} catch (...) {
  (void)cudaGetLastError();  // the error of the algorithm that failed is cleared
  throw;
}

}  // namespace lockstep::cuda

#include "kernels/cuda/base/stream.h"

#include "lockstep/error.h"

namespace lockstep::cuda {

// Blocking synchronisation: while a rank waits for its device, its core is free for the readers.
CudaEvent::CudaEvent(EventUse use) : use_(use) {
  cudaEvent_t event = nullptr;
  const unsigned timing = use == EventUse::timing ? cudaEventDefault : cudaEventDisableTiming;
  LOCKSTEP_CUDA_CHECK(cudaEventCreateWithFlags(&event, timing | cudaEventBlockingSync));
  event_ = Handle<EventTraits>(event);
}

namespace {

bool is_capturing(cudaStream_t stream) {
  cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
  LOCKSTEP_CUDA_CHECK(cudaStreamIsCapturing(stream, &capture));
  return capture == cudaStreamCaptureStatusActive;
}

}  // namespace

void CudaEvent::record(Stream& stream) {
  // The host reads the times of a captured graph only from external event nodes.
  const bool is_external = use_ == EventUse::timing && is_capturing(cuda::native(stream));
  const unsigned flags = is_external ? cudaEventRecordExternal : cudaEventRecordDefault;
  LOCKSTEP_CUDA_CHECK(cudaEventRecordWithFlags(event_.get(), cuda::native(stream), flags));
}

double CudaEvent::seconds_since(const Event& earlier) const {
  float milliseconds = 0;
  LOCKSTEP_CUDA_CHECK(cudaEventElapsedTime(&milliseconds, static_cast<cudaEvent_t>(earlier.native()), event_.get()));
  return 1e-3 * static_cast<double>(milliseconds);
}

// An event that was last recorded inside a captured graph is a position in that graph, not a point of a stream. Nothing
// is pending, so a query may return true. But the host cannot wait for the event, and would read results that do not
// exist yet.
bool CudaEvent::is_done() const {
  const cudaError_t status = cudaEventQuery(event_.get());
  if (status != cudaSuccess) (void)cudaGetLastError();  // clears the error, so that the next launch does not report it
  if (status == cudaErrorNotReady) return false;
  if (status != cudaErrorCapturedEvent) LOCKSTEP_CUDA_CHECK(status);
  return true;
}

void CudaEvent::synchronize() const {
  const cudaError_t status = cudaEventSynchronize(event_.get());
  if (status != cudaSuccess) (void)cudaGetLastError();
  require(status != cudaErrorCapturedEvent, ErrorCode::internal,
          "the host waits for an event of a captured graph; only a stream can wait for it");
  LOCKSTEP_CUDA_CHECK(status);
}

CudaStream::CudaStream(StreamPriority priority) {
  int least = 0, greatest = 0;
  LOCKSTEP_CUDA_CHECK(cudaDeviceGetStreamPriorityRange(&least, &greatest));
  cudaStream_t stream = nullptr;
  LOCKSTEP_CUDA_CHECK(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking,
                                                   priority == StreamPriority::high ? greatest : least));
  stream_ = Handle<StreamTraits>(stream);
}

void CudaStream::wait(const Event& event) {
  if (event.native() == nullptr) return event.synchronize();
  LOCKSTEP_CUDA_CHECK(cudaStreamWaitEvent(stream_.get(), static_cast<cudaEvent_t>(event.native()), 0));
}

void CudaStream::wait_in_each_launch(const Event& event) {
  const unsigned flags = is_capturing(stream_.get()) ? cudaEventWaitExternal : cudaEventWaitDefault;
  LOCKSTEP_CUDA_CHECK(cudaStreamWaitEvent(stream_.get(), static_cast<cudaEvent_t>(event.native()), flags));
}

void CudaStream::synchronize() { LOCKSTEP_CUDA_CHECK(cudaStreamSynchronize(stream_.get())); }

bool CudaGraph::begin(Stream& stream) {
  if (graph_) {
    LOCKSTEP_CUDA_CHECK(cudaGraphLaunch(graph_.get(), native(stream)));
    return false;
  }
  if (eager_runs_ < kEagerRuns) {
    ++eager_runs_;
  } else {
    LOCKSTEP_CUDA_CHECK(cudaStreamBeginCapture(native(stream), cudaStreamCaptureModeThreadLocal));
    is_capturing_ = true;
  }
  if (collected_) collected_->begin(stream);
  return true;
}

void CudaGraph::abandon(Stream& stream) noexcept {
  if (collected_) collected_->discard();
  if (!is_capturing_) return;
  is_capturing_ = false;
  cudaGraph_t graph = nullptr;
  // The error that interrupted the capture is reported, and none that follows from it.
  if (cudaStreamEndCapture(native(stream), &graph) == cudaSuccess) LOCKSTEP_CUDA_REPORT(cudaGraphDestroy(graph));
  (void)cudaGetLastError();
}

void CudaGraph::end(Stream& stream) {
  if (collected_) collected_->end();
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

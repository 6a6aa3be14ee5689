// program: own
// Events of the CUDA backend that were last recorded in a captured graph, against a fake runtime that answers as CUDA
// does.
// The functions below replace the toolkit's library in this program.
#include "kernels/cuda/base/stream.h"

#include <gtest/gtest.h>

#include <utility>

#include "lockstep/error.h"

namespace {

cudaError_t status_of_event = cudaSuccess;  // of the only one
cudaError_t last_error = cudaSuccess;       // cleared by cudaGetLastError alone, as CUDA's is
bool is_capturing = false;
unsigned record_flags = 0;

cudaError_t answer(cudaError_t status) {
  if (status != cudaSuccess) last_error = status;
  return status;
}

}  // namespace

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  *event = reinterpret_cast<cudaEvent_t>(&status_of_event);
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t) { return cudaSuccess; }
cudaError_t cudaEventRecordWithFlags(cudaEvent_t, cudaStream_t, unsigned flags) {
  record_flags = flags;
  const bool is_node = flags == cudaEventRecordExternal;
  status_of_event = is_capturing && !is_node ? cudaErrorCapturedEvent : cudaErrorNotReady;
  return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t) { return answer(status_of_event); }
cudaError_t cudaEventSynchronize(cudaEvent_t) {
  if (status_of_event == cudaErrorNotReady) status_of_event = cudaSuccess;
  return answer(status_of_event);
}
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t, cudaEvent_t) {
  *milliseconds = 0;
  return answer(status_of_event);
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned, int) {
  *stream = reinterpret_cast<cudaStream_t>(&is_capturing);
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t) { return cudaSuccess; }
cudaError_t cudaStreamSynchronize(cudaStream_t) { return cudaSuccess; }
cudaError_t cudaStreamWaitEvent(cudaStream_t, cudaEvent_t, unsigned) { return cudaSuccess; }
cudaError_t cudaStreamIsCapturing(cudaStream_t, cudaStreamCaptureStatus* status) {
  *status = is_capturing ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = *greatest = 0;
  return cudaSuccess;
}
cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}
cudaError_t cudaGetLastError() { return std::exchange(last_error, cudaSuccess); }
const char* cudaGetErrorString(cudaError_t) { return "made up"; }

namespace lockstep::cuda {
namespace {

class CudaEvents : public testing::Test {
 protected:
  void record(CudaEvent& event, bool in_capture) {
    is_capturing = in_capture;
    event.record(stream_);
    is_capturing = false;
  }
  void TearDown() override { EXPECT_EQ(last_error, cudaSuccess) << "which the next launch would report"; }

  CudaStream stream_;
};

TEST_F(CudaEvents, AreNotDoneUntilTheStreamReachesThem) {
  CudaEvent event;
  record(event, false);
  EXPECT_FALSE(event.is_done());
  event.synchronize();
  EXPECT_TRUE(event.is_done());
}

TEST_F(CudaEvents, AreNotPendingInsideACapturedGraph) {
  CudaEvent event;
  record(event, true);
  EXPECT_TRUE(event.is_done());
  EXPECT_THROW(event.synchronize(), Error);
  record(event, false);
  EXPECT_FALSE(event.is_done());
}

TEST_F(CudaEvents, TimingEventsAreRecordedByACapturedGraph) {
  CudaEvent event(EventUse::timing);
  record(event, true);
  EXPECT_EQ(record_flags, static_cast<unsigned>(cudaEventRecordExternal));
  EXPECT_FALSE(event.is_done());
  event.synchronize();
  record(event, false);
  EXPECT_EQ(record_flags, static_cast<unsigned>(cudaEventRecordDefault));
}

TEST_F(CudaEvents, ReportADeviceThatFailed) {
  CudaEvent event;
  status_of_event = cudaErrorIllegalAddress;
  EXPECT_THROW((void)event.is_done(), Error);
  EXPECT_THROW(event.synchronize(), Error);
}

}  // namespace
}  // namespace lockstep::cuda

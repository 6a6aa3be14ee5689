// program: own
// Events of the CUDA backend that were last recorded in a captured graph, and the priorities of what a graph runs,
// tested with a fake runtime that answers as CUDA does. The functions below replace the toolkit's library in this
// program.
#include "kernels/cuda/base/stream.h"

#include <gtest/gtest.h>

#include <array>

#include <utility>

#include "lockstep/error.h"

namespace {

constexpr int kLeast = 0, kGreatest = -5;  // priorities of streams; lower numbers come first

/// A stream, and a graph with one kernel for each stream that was captured.
struct FakeStream {
  int priority = kLeast;
};
struct FakeGraph {
  std::array<int, 2> priorities{};
};
FakeGraph captured, launched;  // the graph being captured; the priorities used by the last launch
unsigned long long instantiate_flags = 0;

cudaError_t status_of_event = cudaSuccess;  // there is only one event
cudaError_t last_error = cudaSuccess;       // cleared only by cudaGetLastError, as in CUDA
bool is_capturing = false;
cudaError_t status_of_capture = cudaSuccess;
unsigned record_flags = 0, wait_flags = 0;

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
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned, int priority) {
  *stream = reinterpret_cast<cudaStream_t>(new FakeStream{priority});
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  delete reinterpret_cast<FakeStream*>(stream);
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t) { return cudaSuccess; }
cudaError_t cudaStreamWaitEvent(cudaStream_t, cudaEvent_t, unsigned flags) {
  wait_flags = flags;
  return cudaSuccess;
}
cudaError_t cudaStreamIsCapturing(cudaStream_t, cudaStreamCaptureStatus* status) {
  *status = is_capturing ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = kLeast;
  *greatest = kGreatest;
  return cudaSuccess;
}
cudaError_t cudaStreamBeginCapture(cudaStream_t, cudaStreamCaptureMode) {
  is_capturing = true;
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t, cudaGraph_t* graph) {
  is_capturing = false;
  *graph = status_of_capture == cudaSuccess ? reinterpret_cast<cudaGraph_t>(&captured) : nullptr;
  return answer(std::exchange(status_of_capture, cudaSuccess));
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* executable, cudaGraph_t graph, unsigned long long flags) {
  instantiate_flags = flags;
  *executable = reinterpret_cast<cudaGraphExec_t>(graph);
  return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t stream) {
  launched = *reinterpret_cast<FakeGraph*>(executable);
  if ((instantiate_flags & cudaGraphInstantiateFlagUseNodePriority) == 0)
    launched.priorities.fill(reinterpret_cast<FakeStream*>(stream)->priority);
  return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t) { return cudaSuccess; }
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t) { return cudaSuccess; }
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

TEST_F(CudaEvents, OutsideOfACaptureAreWaitedForInEachLaunch) {
  CudaEvent event;
  record(event, false);
  stream_.wait_in_each_launch(event);
  EXPECT_EQ(wait_flags, static_cast<unsigned>(cudaEventWaitDefault));
  is_capturing = true;
  stream_.wait_in_each_launch(event);
  is_capturing = false;
  EXPECT_EQ(wait_flags, static_cast<unsigned>(cudaEventWaitExternal));
}

TEST_F(CudaEvents, ReportADeviceThatFailed) {
  CudaEvent event;
  status_of_event = cudaErrorIllegalAddress;
  EXPECT_THROW((void)event.is_done(), Error);
  EXPECT_THROW(event.synchronize(), Error);
}

// The kernels of exchanges are captured on a high-priority stream, so that they do not wait behind those of the
// backward pass. When they are launched as part of a graph, they must run with that priority too.
TEST(CudaGraphs, KeepThePrioritiesOfTheStreams) {
  CudaStream compute, communication(StreamPriority::high);
  const auto kernel = [](const Stream& stream) { return reinterpret_cast<FakeStream*>(native(stream))->priority; };
  CudaGraph graph;
  for (int run = 0; run < 4; ++run) {
    launched = {};
    graph.run(compute, [&] {
      if (is_capturing) captured.priorities = {kernel(compute), kernel(communication)};
    });
  }
  EXPECT_EQ(launched.priorities, (std::array{kLeast, kGreatest}));
}

// Otherwise, every later call on the stream would report that it is being captured, and not what went wrong.
TEST(CudaGraphs, AreDroppedByAnErrorWhichIsReported) {
  CudaStream stream;
  CudaGraph graph;
  const auto work = [&](bool fails) {
    if (!fails || !is_capturing) return;
    status_of_capture = cudaErrorStreamCaptureInvalidated;  // what CUDA reports from now on
    fail(ErrorCode::not_supported, "the first cause");
  };
  std::string cause;
  for (int run = 0; run < 3; ++run) try {
      graph.run(stream, [&] { work(true); });
    } catch (const Error& error) {
      cause = error.what();
    }
  EXPECT_EQ(cause, "the first cause");
  EXPECT_FALSE(is_capturing);
  EXPECT_EQ(last_error, cudaSuccess);
  bool is_captured = false;
  graph.run(stream, [&] { is_captured = is_capturing; });
  EXPECT_TRUE(is_captured) << "a dropped graph was launched";
}

}  // namespace
}  // namespace lockstep::cuda

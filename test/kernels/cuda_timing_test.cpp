// program: own
// The clock that times algorithms, tested with a fake runtime in which the host launches more slowly than the device
// computes, as for small layers. The functions below replace the toolkit's library in this program.
#include "kernels/cuda/base/timing.h"

#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "kernels/cuda/base/stream.h"
#include "lockstep/error.h"

namespace {

constexpr double kLaunch = 4e-6;  // seconds on the host, per kernel or graph
double host = 0, device = 0;      // when the last launch was made, and when its kernels end
std::vector<double> captured;     // the kernels of the graph, in seconds
bool is_capturing = false, refuses_capture = false;
cudaError_t last_error = cudaSuccess;
struct FakeEvent {
  double time = 0;
} first_event, second_event;
int n_events = 0;

void launch(double seconds) {
  host += kLaunch;
  device = std::max(device, host) + seconds;
}

/// A kernel that takes `seconds`.
void run_kernel(double seconds) {
  if (is_capturing)
    captured.push_back(seconds);
  else
    launch(seconds);
}

}  // namespace

cudaError_t cudaSetDevice(int) { return cudaSuccess; }
cudaError_t cudaMalloc(void**, std::size_t) { return cudaErrorMemoryAllocation; }
cudaError_t cudaFree(void*) { return cudaSuccess; }
cudaError_t cudaMemset(void*, int, std::size_t) { return cudaSuccess; }
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  *event = reinterpret_cast<cudaEvent_t>(n_events++ % 2 == 0 ? &first_event : &second_event);
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t) { return cudaSuccess; }
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t) {
  reinterpret_cast<FakeEvent*>(event)->time = std::max(host, device);
  return cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t) {
  host = std::max(host, device);
  return cudaSuccess;
}
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t begin, cudaEvent_t end) {
  *milliseconds =
      static_cast<float>(1e3 * (reinterpret_cast<FakeEvent*>(end)->time - reinterpret_cast<FakeEvent*>(begin)->time));
  return cudaSuccess;
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned, int) {
  *stream = reinterpret_cast<cudaStream_t>(&host);
  return cudaSuccess;
}
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = *greatest = 0;
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t) { return cudaSuccess; }
cudaError_t cudaStreamWaitEvent(cudaStream_t, cudaEvent_t, unsigned) { return cudaSuccess; }
cudaError_t cudaStreamIsCapturing(cudaStream_t, cudaStreamCaptureStatus*) { return cudaSuccess; }
cudaError_t cudaEventQuery(cudaEvent_t) { return cudaSuccess; }
cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned) {
  return cudaEventRecord(event, stream);
}
cudaError_t cudaStreamSynchronize(cudaStream_t) { return cudaEventSynchronize(nullptr); }
cudaError_t cudaStreamBeginCapture(cudaStream_t, cudaStreamCaptureMode) {
  is_capturing = true;
  captured.clear();
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t, cudaGraph_t* graph) {
  is_capturing = false;
  *graph = nullptr;
  if (refuses_capture) return last_error = cudaErrorStreamCaptureInvalidated;
  *graph = reinterpret_cast<cudaGraph_t>(&captured);
  return cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* executable, cudaGraph_t graph, unsigned long long) {
  *executable = reinterpret_cast<cudaGraphExec_t>(graph);
  return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t, cudaStream_t) {
  double seconds = 0;
  for (const double kernel : captured) seconds += kernel;
  launch(seconds);
  return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t) { return cudaSuccess; }
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t) { return cudaSuccess; }
cudaError_t cudaGetDevice(int* device_number) {
  *device_number = 0;
  return cudaSuccess;
}
cudaError_t cudaGetLastError() { return std::exchange(last_error, cudaSuccess); }
const char* cudaGetErrorString(cudaError_t) { return "made up"; }

namespace lockstep::cuda {
namespace {

/// Times a candidate that consists of these kernels.
double timed(const std::vector<double>& kernels, double best = 1e30) {
  return seconds_of(
      [&](Stream&) {
        for (const double kernel : kernels) run_kernel(kernel);
      },
      CudaContext{}, best);
}

// Three kernels of 1 us take less time than one of 3.5 us, although they are launched three times as often.
TEST(CudaTiming, MeasuresKernelsInsteadOfTheirLaunches) {
  EXPECT_NEAR(timed({3.5e-6}), 3.5e-6, 0.5e-6);
  EXPECT_LT(timed({1e-6, 1e-6, 1e-6}), timed({3.5e-6}));
}

TEST(CudaTiming, RunsWhatIsMuchSlowerOnlyTwice) {
  int n_runs = 0;
  const auto timed_after = [&](double best, double kernel) {
    n_runs = 0;
    return seconds_of([&](Stream&) { ++n_runs, run_kernel(kernel); }, CudaContext{}, best);
  };
  EXPECT_GT(timed_after(100e-6, 400e-6), 300e-6);
  EXPECT_EQ(n_runs, 2);
  EXPECT_NEAR(timed_after(1e-6, 30e-6), 30e-6, 1e-6) << "of which launches may be most";
  EXPECT_EQ(n_runs, 12);
}

TEST(CudaTiming, TimesWhatCannotBeCapturedToo) {
  refuses_capture = true;
  EXPECT_NEAR(timed({20e-6}), 20e-6, 1e-6);
  refuses_capture = false;
  EXPECT_EQ(last_error, cudaSuccess) << "which the next launch would report";
}

TEST(CudaTiming, PassesOnWhatARunThrowsAndClearsTheError) {
  const auto run = [](Stream&) {
    last_error = cudaErrorLaunchFailure;
    fail(ErrorCode::library, "made up");
  };
  EXPECT_THROW(seconds_of(run, CudaContext{}), Error);
  EXPECT_EQ(last_error, cudaSuccess);
  const auto only_captured = [](Stream&) {
    if (is_capturing) fail(ErrorCode::library, "not while capturing");
    run_kernel(5e-6);
  };
  EXPECT_NEAR(seconds_of(only_captured, CudaContext{}), 5e-6, 1e-6);
  EXPECT_FALSE(is_capturing);
}

}  // namespace
}  // namespace lockstep::cuda

// CUDA's streams, events and captured graphs, with the contract of lockstep/event.h.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/cuda/base/check.h"
#include "lockstep/event.h"
#include "lockstep/handle.h"
#include "lockstep/launches.h"

namespace lockstep::cuda {

template <typename T, cudaError_t (*kDestroy)(T)>
struct CudaTraits {
  using Type = T;
  static Type null() { return nullptr; }
  static void close(Type handle) { LOCKSTEP_CUDA_REPORT(kDestroy(handle)); }
};
using StreamTraits = CudaTraits<cudaStream_t, cudaStreamDestroy>;
using EventTraits = CudaTraits<cudaEvent_t, cudaEventDestroy>;
using GraphTraits = CudaTraits<cudaGraphExec_t, cudaGraphExecDestroy>;

enum class EventUse : std::uint8_t { order, timing };

class CudaEvent final : public Event {
 public:
  explicit CudaEvent(EventUse use = EventUse::order);
  void record(Stream& stream) override;
  bool is_done() const override;
  void synchronize() const override;
  double seconds_since(const Event& earlier) const override;
  void* native() const override { return event_.get(); }

 private:
  EventUse use_;
  Handle<EventTraits> event_;
};

class CudaStream final : public Stream {
 public:
  explicit CudaStream(StreamPriority priority = StreamPriority::normal);
  /// Waiting for an event of the host (of a host communicator) blocks the caller.
  void wait(const Event& event) override;
  void wait_in_each_launch(const Event& event) override;
  void synchronize() override;
  void* native() const override { return stream_.get(); }

 private:
  Handle<StreamTraits> stream_;
};

/// A repeated part of a step as a CUDA graph. It runs eagerly the first two times (libraries load their kernels then),
/// is captured the third time, and is one launch from then on. Each kernel keeps the priority of the stream on which it
/// was captured. The capture is local to the thread: readers and the checkpoint writer are not affected.
class CudaGraph final : public CapturedGraph {
 public:
  /// `collected`: work of each part that is launched together; may be null.
  explicit CudaGraph(std::unique_ptr<PendingWork> collected = nullptr) : collected_(std::move(collected)) {}

 private:
  bool begin(Stream& stream) override;
  void end(Stream& stream) override;
  void abandon(Stream& stream) noexcept override;

  static constexpr int kEagerRuns = 2;
  Handle<GraphTraits> graph_;
  int eager_runs_ = 0;
  bool is_capturing_ = false;
  std::unique_ptr<PendingWork> collected_;
};

/// For calls that queue work on the stream.
inline cudaStream_t native(const Stream& stream) {
  launch_pending();
  return static_cast<cudaStream_t>(stream.native());
}

}  // namespace lockstep::cuda

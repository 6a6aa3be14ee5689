// A stand-in for a device: another backend with streams that are queues with one thread each, and a record of every
// call in the order in which it was made.
//
// It behaves like CUDA where tests can observe it. Work runs when its stream reaches it, which may be long after the
// call. A stream waits for the point at which an event was most recently recorded when wait() was called. Host memory
// that is not pinned is copied before the call returns, in both directions. Freeing memory waits for all streams. A
// missing wait or event therefore leads to a wrong result, and the record contains the order itself. Parts of a step
// are run call by call, or captured and launched as a whole (queued_streams.h).
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "lockstep/backend.h"
#include "lockstep/ops/batch_norm.h"
#include "lockstep/ops/cast.h"
#include "lockstep/ops/clip_norm.h"
#include "lockstep/ops/conv2d.h"
#include "lockstep/ops/cross_entropy.h"
#include "lockstep/ops/hash.h"
#include "lockstep/ops/image_input.h"
#include "lockstep/ops/matmul.h"
#include "lockstep/ops/moving_average.h"
#include "lockstep/ops/optimizer.h"
#include "lockstep/ops/ordered_sum.h"
#include "lockstep/ops/pool2d.h"
#include "test/support/queued_streams.h"
#include "test/support/recording.h"

namespace lockstep::test {

enum class GraphCapture : std::uint8_t { off, on };

class RecordingBackend final : public Backend {
 public:
  /// `inner` works in the threads of the streams, one call at a time. `uuid`: DeviceInfo::uuid.
  explicit RecordingBackend(Backend& inner, std::string uuid = "", GraphCapture graph_capture = GraphCapture::off);
  ~RecordingBackend() override;

  Recording& recording() { return queues_.recording; }
  /// The number of an event, as in Call::event; -1 for an event of the host. For a stream, as in Call::stream.
  static int number_of(const Event& event);
  static int number_of(const Stream& stream);
  /// Sets QueuedDevice::late_stream or ignored_stream. The device must be idle.
  void make_late(int stream) { queues_.late_stream = stream; }
  void ignore_events_of(int stream) { queues_.ignored_stream = stream; }
  /// Each operation of every stream is delayed by this time, so that code without the necessary wait runs too early.
  void slow_down(double milliseconds);

  int n_visible = 0;  // DeviceInfo::n_visible

  std::string name() const override { return "recording"; }
  DeviceInfo device() const override;
  MemorySpace memory_space() const override { return MemorySpace::device; }
  std::unique_ptr<Memory> allocate(std::size_t size_bytes, const std::string& purpose) override;
  std::unique_ptr<Memory> allocate_host(std::size_t size_bytes, const std::string& purpose) override;
  std::unique_ptr<Memory> pin_host(void* h_data, std::size_t size_bytes) override;
  void freeze() override;
  void unfreeze() override;
  using Backend::make_stream;
  std::unique_ptr<Stream> make_stream(StreamPriority priority) override;
  std::unique_ptr<Event> make_event() override;
  std::unique_ptr<Event> make_timing_event() override;
  std::unique_ptr<CapturedGraph> make_captured_graph() override;
  void copy(void* target, const void* source, std::size_t size_bytes, Stream& stream) override;
  void fill_zero(void* d_target, std::size_t size_bytes, Stream& stream) override;
  void record_progress(StreamProgress* h_progress, std::uint64_t what, Stream& stream) override;
  void run_on_host(const std::function<void()>& work, Stream& stream) override;
  Backend& host() override { return inner_; }
  Layout activation_layout(const Shape& shape, DType dtype) const override {
    return inner_.activation_layout(shape, dtype);
  }
  std::string check_precision(Precision precision) const override { return inner_.check_precision(precision); }

  /// Returns the inner backend's op itself: its calls go through the queue of the stream that they receive.
  std::unique_ptr<Op> make_op(const OpRequest& request) override { return inner_.make_op(request); }

 private:
  class PinnedMemory;
  class DeviceMemory;

  bool is_pinned(const void* place, std::size_t size_bytes) const;
  bool is_device(const void* place) const;

  Backend& inner_;
  const std::string uuid_;
  std::unique_ptr<Stream> inner_stream_;
  const GraphCapture graph_capture_;
  QueuedDevice queues_;
  mutable std::mutex mutex_;
  std::map<const std::byte*, std::size_t> pinned_, device_;  // begin, bytes
};

}  // namespace lockstep::test

// A stand-in for a device: another backend behind streams that are queues with a thread each, and a record of every
// call in the order in which it was made.
//
// It behaves as CUDA does where tests can see it. Work runs when its stream comes to it, which may be long after the
// call. A stream waits for what an event was recorded at last when wait() was called. Host memory that is not pinned is
// copied from before the call returns, and into before it returns. To give memory back waits for all streams. So a wait
// or an event that is missing shows as a wrong result, and the order itself stands in the record. Parts of
// a step are run call by call, or captured and launched as a whole (queued_streams.h).
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "lockstep/backend.h"
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
  /// Call::event of an event; -1: the host's. Call::stream of a stream.
  static int number_of(const Event& event);
  static int number_of(const Stream& stream);
  /// Each piece of work of every stream sleeps so long before, so that whoever does not wait for it comes too early.
  void slow_down(double milliseconds);

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
  void copy_to_device(void* d_target, const void* h_source, std::size_t size_bytes, Stream& stream) override;
  void copy_to_host(void* h_target, const void* d_source, std::size_t size_bytes, Stream& stream) override;
  void fill_zero(void* d_target, std::size_t size_bytes, Stream& stream) override;
  void count(StreamProgress* h_progress, std::uint64_t what, Stream& stream) override;
  Layout activation_layout(const Shape& shape, DType dtype) const override {
    return inner_.activation_layout(shape, dtype);
  }
  std::string check_precision(Precision precision) const override { return inner_.check_precision(precision); }

  std::unique_ptr<Conv2d> conv2d(const Conv2dDescription&) override;
  std::unique_ptr<Pool2d> pool2d(const Pool2dDescription&) override;
  std::unique_ptr<BatchNorm> batch_norm(const BatchNormDescription&) override;
  std::unique_ptr<Matmul> matmul(const MatmulDescription&) override;
  std::unique_ptr<SoftmaxCrossEntropy> softmax_cross_entropy(const SoftmaxCrossEntropyDescription&) override;
  std::unique_ptr<ImageInput> image_input(const ImageInputDescription&) override;
  std::unique_ptr<Optimizer> optimizer(const OptimizerDescription&) override;
  std::unique_ptr<ClipNorm> clip_norm(const ClipNormDescription&) override;
  std::unique_ptr<OrderedSum> ordered_sum(const OrderedSumDescription&) override;
  std::unique_ptr<Cast> cast(const CastDescription&) override;
  std::unique_ptr<MovingAverage> moving_average(const MovingAverageDescription&) override;
  std::unique_ptr<Hash> hash(const HashDescription&) override;

  // For its parts
  void run(const std::string& what, Stream& stream, std::function<void(Stream& inner)> work);

 private:
  class PinnedMemory;
  class DeviceMemory;

  bool is_pinned(const void* place, std::size_t size_bytes) const;
  bool is_device(const void* place) const;

  Backend& inner_;
  const std::string uuid_;
  std::unique_ptr<Stream> inner_stream_;
  std::mutex inner_mutex_;
  const GraphCapture graph_capture_;
  QueuedDevice queues_;
  mutable std::mutex mutex_;
  std::map<const std::byte*, std::size_t> pinned_, device_;  // begin, bytes
};

}  // namespace lockstep::test

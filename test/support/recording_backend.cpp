#include "test/support/recording_backend.h"

#include <atomic>
#include <cstring>
#include <utility>
#include <vector>

namespace lockstep::test {

void RecordingBackend::run(const std::string& what, Stream& stream, std::function<void(Stream& inner)> work) {
  auto& queued = dynamic_cast<QueuedStream&>(stream);
  queues_.recording.add({.what = what, .stream = queued.number()});
  queued.put([this, work = std::move(work)] {
    const std::lock_guard lock(inner_mutex_);
    work(*inner_stream_);
  });
}

// ---- Memory

class RecordingBackend::DeviceMemory final : public Memory {
 public:
  DeviceMemory(RecordingBackend& backend, std::unique_ptr<Memory> memory)
      : backend_(backend), memory_(std::move(memory)) {
    const std::lock_guard lock(backend_.mutex_);
    backend_.device_[static_cast<std::byte*>(memory_->data())] = memory_->size_bytes();
  }
  ~DeviceMemory() override {
    backend_.queues_.note_while_capturing();
    backend_.queues_.synchronize_all();
    const std::lock_guard lock(backend_.mutex_);
    backend_.device_.erase(static_cast<std::byte*>(memory_->data()));
  }
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;
  void* data() const override { return memory_->data(); }
  std::size_t size_bytes() const override { return memory_->size_bytes(); }

 private:
  RecordingBackend& backend_;
  std::unique_ptr<Memory> memory_;
};

/// Of its own, or of others.
class RecordingBackend::PinnedMemory final : public Memory {
 public:
  PinnedMemory(RecordingBackend& backend, std::unique_ptr<Memory> owned, void* data, std::size_t size_bytes)
      : backend_(backend), owned_(std::move(owned)), data_(data), size_bytes_(size_bytes) {
    const std::lock_guard lock(backend_.mutex_);
    backend_.pinned_[static_cast<std::byte*>(data_)] = size_bytes_;
  }
  ~PinnedMemory() override {
    backend_.queues_.note_while_capturing();
    backend_.queues_.synchronize_all();
    const std::lock_guard lock(backend_.mutex_);
    backend_.pinned_.erase(static_cast<std::byte*>(data_));
  }
  PinnedMemory(const PinnedMemory&) = delete;
  PinnedMemory& operator=(const PinnedMemory&) = delete;
  void* data() const override { return data_; }
  std::size_t size_bytes() const override { return size_bytes_; }

 private:
  RecordingBackend& backend_;
  std::unique_ptr<Memory> owned_;
  void* data_;
  std::size_t size_bytes_;
};

RecordingBackend::RecordingBackend(Backend& inner, std::string uuid, GraphCapture graph_capture)
    : inner_(inner), uuid_(std::move(uuid)), inner_stream_(inner.make_stream()), graph_capture_(graph_capture) {}

RecordingBackend::~RecordingBackend() = default;

int RecordingBackend::number_of(const Event& event) {
  const auto* queued = dynamic_cast<const QueuedEvent*>(&event);
  return queued == nullptr ? -1 : queued->number();
}
int RecordingBackend::number_of(const Stream& stream) { return dynamic_cast<const QueuedStream&>(stream).number(); }

void RecordingBackend::slow_down(double milliseconds) { queues_.sleep_ms = milliseconds; }

DeviceInfo RecordingBackend::device() const {
  DeviceInfo info = inner_.device();
  info.uuid = uuid_;
  return info;
}

std::unique_ptr<Memory> RecordingBackend::allocate(std::size_t size_bytes, const std::string& purpose) {
  queues_.recording.add({.what = "allocate", .size_bytes = size_bytes});
  queues_.refuse_while_capturing();
  return std::make_unique<DeviceMemory>(*this, inner_.allocate(size_bytes, purpose));
}
std::unique_ptr<Memory> RecordingBackend::allocate_host(std::size_t size_bytes, const std::string& purpose) {
  queues_.recording.add({.what = "allocate_host", .size_bytes = size_bytes});
  queues_.refuse_while_capturing();
  std::unique_ptr<Memory> memory = inner_.allocate_host(size_bytes, purpose);
  void* data = memory->data();
  return std::make_unique<PinnedMemory>(*this, std::move(memory), data, size_bytes);
}
std::unique_ptr<Memory> RecordingBackend::pin_host(void* h_data, std::size_t size_bytes) {
  queues_.recording.add({.what = "pin_host", .size_bytes = size_bytes});
  queues_.refuse_while_capturing();
  return std::make_unique<PinnedMemory>(*this, nullptr, h_data, size_bytes);
}
void RecordingBackend::freeze() {
  queues_.recording.add({.what = "freeze"});
  inner_.freeze();
}
void RecordingBackend::unfreeze() {
  queues_.recording.add({.what = "unfreeze"});
  inner_.unfreeze();
}

std::unique_ptr<Stream> RecordingBackend::make_stream(StreamPriority) { return queues_.make_stream(); }
std::unique_ptr<Event> RecordingBackend::make_event() {
  return std::make_unique<QueuedEvent>(queues_, EventUse::order);
}
std::unique_ptr<Event> RecordingBackend::make_timing_event() {
  return std::make_unique<QueuedEvent>(queues_, EventUse::timing);
}
std::unique_ptr<CapturedGraph> RecordingBackend::make_captured_graph() {
  if (graph_capture_ == GraphCapture::off) return std::make_unique<EagerGraph>();
  return std::make_unique<QueuedGraph>(queues_);
}

namespace {
bool holds(const std::map<const std::byte*, std::size_t>& places, const void* place, std::size_t size_bytes) {
  const auto* at = static_cast<const std::byte*>(place);
  auto next = places.upper_bound(at);
  if (next == places.begin()) return false;
  --next;
  return at + size_bytes <= next->first + next->second;
}
}  // namespace

bool RecordingBackend::is_pinned(const void* place, std::size_t size_bytes) const {
  const std::lock_guard lock(mutex_);
  return holds(pinned_, place, size_bytes);
}
bool RecordingBackend::is_device(const void* place) const {
  const std::lock_guard lock(mutex_);
  return holds(device_, place, 1);
}

void RecordingBackend::copy_to_device(void* d_target, const void* h_source, std::size_t size_bytes, Stream& stream) {
  auto& queued = dynamic_cast<QueuedStream&>(stream);
  queues_.recording.add(
      {.what = "copy_to_device", .stream = queued.number(), .target = d_target, .size_bytes = size_bytes});
  if (size_bytes == 0) return;
  if (is_pinned(h_source, size_bytes) || is_device(h_source)) {
    queued.put([=] { std::memmove(d_target, h_source, size_bytes); });
    return;
  }
  queued.refuse_if_captured();
  const auto* begin = static_cast<const std::byte*>(h_source);
  queued.put([d_target, bytes = std::vector<std::byte>(begin, begin + size_bytes)] {
    std::memcpy(d_target, bytes.data(), bytes.size());
  });
}

void RecordingBackend::copy_to_host(void* h_target, const void* d_source, std::size_t size_bytes, Stream& stream) {
  auto& queued = dynamic_cast<QueuedStream&>(stream);
  queues_.recording.add(
      {.what = "copy_to_host", .stream = queued.number(), .target = h_target, .size_bytes = size_bytes});
  if (size_bytes == 0) return;
  const bool is_awaited = !is_pinned(h_target, size_bytes) && !is_device(h_target);
  if (is_awaited) queued.refuse_if_captured();
  queued.put([=] { std::memmove(h_target, d_source, size_bytes); });
  if (is_awaited) queued.drain();
}

void RecordingBackend::fill_zero(void* d_target, std::size_t size_bytes, Stream& stream) {
  auto& queued = dynamic_cast<QueuedStream&>(stream);
  queues_.recording.add({.what = "fill_zero", .stream = queued.number(), .target = d_target, .size_bytes = size_bytes});
  queued.put([=] {
    if (size_bytes > 0) std::memset(d_target, 0, size_bytes);
  });
}

void RecordingBackend::count(StreamProgress* h_progress, std::uint64_t what, Stream& stream) {
  auto& queued = dynamic_cast<QueuedStream&>(stream);
  queues_.recording.add({.what = "count", .stream = queued.number(), .target = h_progress});
  queued.put([=, this, &stream] { Backend::count(h_progress, what, stream); });
}

// ---- Ops: the inner backend's, when the stream comes to them

namespace {

template <typename Op>
class Recorded : public Op {
 public:
  Recorded(RecordingBackend& backend, std::unique_ptr<Op> inner) : backend_(backend), inner_(std::move(inner)) {}
  OpNeeds needs() const override { return inner_->needs(); }
  std::string describe() const override { return inner_->describe(); }

 protected:
  RecordingBackend& backend_;
  std::shared_ptr<Op> inner_;
};

// A method of an op: its arguments are copied, since they are the caller's.
#define LOCKSTEP_RECORDED(NAME, METHOD, ARGUMENTS)                                                       \
  void METHOD(const ARGUMENTS& args, const OpMemory& memory, Stream& stream) override {                  \
    backend_.run(NAME, stream, [op = inner_, args, memory](Stream& s) { op->METHOD(args, memory, s); }); \
  }

class RecordedConv2d final : public Recorded<Conv2d> {
 public:
  using Recorded::Recorded;
  std::shared_ptr<const ParameterLayout> weight_layout() const override { return inner_->weight_layout(); }
  LOCKSTEP_RECORDED("conv2d.forward", forward, Forward)
  LOCKSTEP_RECORDED("conv2d.backward", backward, Backward)
};
class RecordedPool2d final : public Recorded<Pool2d> {
 public:
  using Recorded::Recorded;
  LOCKSTEP_RECORDED("pool2d.forward", forward, Forward)
  LOCKSTEP_RECORDED("pool2d.backward", backward, Backward)
};
class RecordedBatchNorm final : public Recorded<BatchNorm> {
 public:
  using Recorded::Recorded;
  LOCKSTEP_RECORDED("batch_norm.finalize", finalize, Finalize)
  LOCKSTEP_RECORDED("batch_norm.finalize_inference", finalize_inference, FinalizeInference)
  LOCKSTEP_RECORDED("batch_norm.backward", backward, Backward)
};
class RecordedMatmul final : public Recorded<Matmul> {
 public:
  using Recorded::Recorded;
  std::shared_ptr<const ParameterLayout> weight_layout() const override { return inner_->weight_layout(); }
  LOCKSTEP_RECORDED("matmul.forward", forward, Forward)
  LOCKSTEP_RECORDED("matmul.backward", backward, Backward)
};
class RecordedCrossEntropy final : public Recorded<SoftmaxCrossEntropy> {
 public:
  using Recorded::Recorded;
  LOCKSTEP_RECORDED("cross_entropy.forward", forward, Forward)
  LOCKSTEP_RECORDED("cross_entropy.backward", backward, Backward)
};
class RecordedImageInput final : public Recorded<ImageInput> {
 public:
  using Recorded::Recorded;
  LOCKSTEP_RECORDED("image_input.forward", forward, Forward)
};
class RecordedOptimizer final : public Recorded<Optimizer> {
 public:
  using Recorded::Recorded;
  LOCKSTEP_RECORDED("optimizer.apply", apply, Apply)
};
class RecordedClipNorm final : public Recorded<ClipNorm> {
 public:
  using Recorded::Recorded;
  LOCKSTEP_RECORDED("clip_norm.apply", apply, Apply)
};
class RecordedCast final : public Recorded<Cast> {
 public:
  using Recorded::Recorded;
  LOCKSTEP_RECORDED("cast.apply", apply, Apply)
};
class RecordedMovingAverage final : public Recorded<MovingAverage> {
 public:
  using Recorded::Recorded;
  LOCKSTEP_RECORDED("moving_average.apply", apply, Apply)
};
class RecordedHash final : public Recorded<Hash> {
 public:
  using Recorded::Recorded;
  LOCKSTEP_RECORDED("hash.apply", apply, Apply)
};
class RecordedOrderedSum final : public Recorded<OrderedSum> {
 public:
  using Recorded::Recorded;
  void apply(const Apply& args, const OpMemory& memory, Stream& stream) override {
    backend_.run("ordered_sum.apply", stream,
                 [op = inner_, args, memory, open = std::vector(args.open.begin(), args.open.end())](Stream& s) {
                   Apply copy = args;
                   copy.open = open;
                   op->apply(copy, memory, s);
                 });
  }
};

}  // namespace

std::unique_ptr<Conv2d> RecordingBackend::conv2d(const Conv2dDescription& d) {
  return std::make_unique<RecordedConv2d>(*this, inner_.conv2d(d));
}
std::unique_ptr<Pool2d> RecordingBackend::pool2d(const Pool2dDescription& d) {
  return std::make_unique<RecordedPool2d>(*this, inner_.pool2d(d));
}
std::unique_ptr<BatchNorm> RecordingBackend::batch_norm(const BatchNormDescription& d) {
  return std::make_unique<RecordedBatchNorm>(*this, inner_.batch_norm(d));
}
std::unique_ptr<Matmul> RecordingBackend::matmul(const MatmulDescription& d) {
  return std::make_unique<RecordedMatmul>(*this, inner_.matmul(d));
}
std::unique_ptr<SoftmaxCrossEntropy> RecordingBackend::softmax_cross_entropy(const SoftmaxCrossEntropyDescription& d) {
  return std::make_unique<RecordedCrossEntropy>(*this, inner_.softmax_cross_entropy(d));
}
std::unique_ptr<ImageInput> RecordingBackend::image_input(const ImageInputDescription& d) {
  return std::make_unique<RecordedImageInput>(*this, inner_.image_input(d));
}
std::unique_ptr<Optimizer> RecordingBackend::optimizer(const OptimizerDescription& d) {
  return std::make_unique<RecordedOptimizer>(*this, inner_.optimizer(d));
}
std::unique_ptr<ClipNorm> RecordingBackend::clip_norm(const ClipNormDescription& d) {
  return std::make_unique<RecordedClipNorm>(*this, inner_.clip_norm(d));
}
std::unique_ptr<OrderedSum> RecordingBackend::ordered_sum(const OrderedSumDescription& d) {
  return std::make_unique<RecordedOrderedSum>(*this, inner_.ordered_sum(d));
}
std::unique_ptr<Cast> RecordingBackend::cast(const CastDescription& d) {
  return std::make_unique<RecordedCast>(*this, inner_.cast(d));
}
std::unique_ptr<MovingAverage> RecordingBackend::moving_average(const MovingAverageDescription& d) {
  return std::make_unique<RecordedMovingAverage>(*this, inner_.moving_average(d));
}
std::unique_ptr<Hash> RecordingBackend::hash(const HashDescription& d) {
  return std::make_unique<RecordedHash>(*this, inner_.hash(d));
}

}  // namespace lockstep::test

#include "test/support/recording_backend.h"

#include <atomic>
#include <cstring>
#include <utility>
#include <vector>

namespace lockstep::test {

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

/// Memory that was allocated here or elsewhere.
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
    : inner_(inner), uuid_(std::move(uuid)), inner_stream_(inner.make_stream()), graph_capture_(graph_capture) {
  queues_.op_stream = inner_stream_.get();
}

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
  info.n_visible = n_visible;
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

/// As in CUDA, a copy from memory that is not pinned has read its source when it returns, and one to such memory is
/// complete.
void RecordingBackend::copy(void* target, const void* source, std::size_t size_bytes, Stream& stream) {
  auto& queued = dynamic_cast<QueuedStream&>(stream);
  const bool to_device = is_device(target);
  queues_.recording.add({.what = to_device ? "copy_to_device" : "copy_to_host",
                         .stream = queued.number(),
                         .target = target,
                         .size_bytes = size_bytes});
  if (size_bytes == 0) return;
  const bool reads_now = to_device && !is_pinned(source, size_bytes) && !is_device(source);
  const bool is_awaited = !to_device && !is_pinned(target, size_bytes);
  if (reads_now || is_awaited) queued.refuse_if_captured();
  if (reads_now) {
    const auto* begin = static_cast<const std::byte*>(source);
    queued.put([target, bytes = std::vector<std::byte>(begin, begin + size_bytes)] {
      std::memcpy(target, bytes.data(), bytes.size());
    });
  } else {
    queued.put([=] { std::memmove(target, source, size_bytes); });
  }
  if (is_awaited) queued.drain();
}

void RecordingBackend::fill_zero(void* d_target, std::size_t size_bytes, Stream& stream) {
  auto& queued = dynamic_cast<QueuedStream&>(stream);
  queues_.recording.add({.what = "fill_zero", .stream = queued.number(), .target = d_target, .size_bytes = size_bytes});
  queued.put([=] {
    if (size_bytes > 0) std::memset(d_target, 0, size_bytes);
  });
}

void RecordingBackend::run_on_host(const std::function<void()>& work, Stream& stream) {
  auto& queued = dynamic_cast<QueuedStream&>(stream);
  queues_.recording.add({.what = "run_on_host", .stream = queued.number()});
  queued.put([&work] { work(); });
}

void RecordingBackend::record_progress(StreamProgress* h_progress, std::uint64_t what, Stream& stream) {
  auto& queued = dynamic_cast<QueuedStream&>(stream);
  queues_.recording.add({.what = "record_progress", .stream = queued.number(), .target = h_progress});
  queued.put([=, this, &stream] { Backend::record_progress(h_progress, what, stream); });
}

}  // namespace lockstep::test

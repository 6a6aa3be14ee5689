#include "test/reference/backend.h"

#include <cstring>
#include <new>

#include "lockstep/error.h"
#include "test/reference/ops.h"

namespace lockstep::reference {
namespace {

constexpr std::align_val_t kAlignment{64};

class HostMemory final : public Memory {
 public:
  explicit HostMemory(std::size_t size_bytes) : data_(::operator new(size_bytes, kAlignment)), size_bytes_(size_bytes) {
    std::memset(data_, 0, size_bytes);
  }
  HostMemory(const HostMemory&) = delete;
  HostMemory& operator=(const HostMemory&) = delete;
  ~HostMemory() override { ::operator delete(data_, kAlignment); }
  void* data() const override { return data_; }
  std::size_t size_bytes() const override { return size_bytes_; }

 private:
  void* data_;
  std::size_t size_bytes_;
};

class HostStream final : public Stream {
 public:
  void wait(const Event& event) override { event.synchronize(); }
  void synchronize() override {}
};

}  // namespace

DeviceInfo ReferenceBackend::device() const { return {"naive double precision", std::size_t{1} << 40, {}}; }

std::unique_ptr<Memory> ReferenceBackend::allocate(std::size_t size_bytes, const std::string& purpose) {
  require(!frozen_, ErrorCode::internal, "an allocation of {} bytes for {} inside the step", size_bytes, purpose);
  return std::make_unique<HostMemory>(size_bytes);
}

std::unique_ptr<Stream> ReferenceBackend::make_stream(StreamPriority) { return std::make_unique<HostStream>(); }
std::unique_ptr<Event> ReferenceBackend::make_event() { return std::make_unique<HostEvent>(); }

void ReferenceBackend::copy(void* target, const void* source, std::size_t size_bytes, Stream&) {
  if (size_bytes > 0) std::memcpy(target, source, size_bytes);
}
void ReferenceBackend::fill_zero(void* d_target, std::size_t size_bytes, Stream&) {
  if (size_bytes > 0) std::memset(d_target, 0, size_bytes);
}

std::unique_ptr<Op> ReferenceBackend::make_op(const OpRequest& request) { return reference::make_op(request, {}); }

std::unique_ptr<Backend> make_reference_backend() { return std::make_unique<ReferenceBackend>(); }

}  // namespace lockstep::reference

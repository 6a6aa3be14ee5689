#include "test/reference/backend.h"

#include <cstring>
#include <new>

#include "lockstep/error.h"
#include "test/reference/batchnorm.h"
#include "test/reference/conv2d.h"
#include "test/reference/cross_entropy.h"
#include "test/reference/image_input.h"
#include "test/reference/matmul.h"
#include "test/reference/optimizer.h"
#include "test/reference/pool2d.h"

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

void ReferenceBackend::copy_to_device(void* d_target, const void* h_source, std::size_t size_bytes, Stream&) {
  if (size_bytes > 0) std::memcpy(d_target, h_source, size_bytes);
}
void ReferenceBackend::copy_to_host(void* h_target, const void* d_source, std::size_t size_bytes, Stream&) {
  if (size_bytes > 0) std::memcpy(h_target, d_source, size_bytes);
}
void ReferenceBackend::fill_zero(void* d_target, std::size_t size_bytes, Stream&) {
  if (size_bytes > 0) std::memset(d_target, 0, size_bytes);
}

std::unique_ptr<Conv2d> ReferenceBackend::conv2d(const Conv2dDescription& d) { return make_conv2d(d); }
std::unique_ptr<Pool2d> ReferenceBackend::pool2d(const Pool2dDescription& d) { return make_pool2d(d); }
std::unique_ptr<BatchNorm> ReferenceBackend::batch_norm(const BatchNormDescription& d) { return make_batch_norm(d); }
std::unique_ptr<Matmul> ReferenceBackend::matmul(const MatmulDescription& d) { return make_matmul(d); }
std::unique_ptr<SoftmaxCrossEntropy> ReferenceBackend::softmax_cross_entropy(const SoftmaxCrossEntropyDescription& d) {
  return make_softmax_cross_entropy(d);
}
std::unique_ptr<ImageInput> ReferenceBackend::image_input(const ImageInputDescription& d) {
  return make_image_input(d);
}
std::unique_ptr<Optimizer> ReferenceBackend::optimizer(const OptimizerDescription& d) { return make_optimizer(d); }
std::unique_ptr<ClipNorm> ReferenceBackend::clip_norm(const ClipNormDescription& d) { return make_clip_norm(d); }
std::unique_ptr<OrderedSum> ReferenceBackend::ordered_sum(const OrderedSumDescription& d) { return make_ordered_sum(d); }
std::unique_ptr<Cast> ReferenceBackend::cast(const CastDescription& d) { return make_cast(d); }
std::unique_ptr<MovingAverage> ReferenceBackend::moving_average(const MovingAverageDescription& d) {
  return make_moving_average(d);
}
std::unique_ptr<Hash> ReferenceBackend::hash(const HashDescription& d) { return make_hash(d); }

std::unique_ptr<Backend> make_reference_backend() { return std::make_unique<ReferenceBackend>(); }

}  // namespace lockstep::reference

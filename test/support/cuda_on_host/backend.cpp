#include "test/support/cuda_on_host/backend.h"

#include <cstdlib>
#include <cstring>

#include "kernels/cuda/backend_ops.h"
#include "kernels/cuda/base/record_progress.h"
#include "kernels/cuda/matmul_few_rows.h"
#include "lockstep/error.h"
#include "test/support/cuda_on_host/launches.h"

namespace lockstep::test {
namespace {

class HostMemory final : public Memory {
 public:
  explicit HostMemory(std::size_t size_bytes)
      : size_bytes_(size_bytes),
        data_(std::aligned_alloc(256, (std::max<std::size_t>(size_bytes, 1) + 255) / 256 * 256)) {
    require(data_ != nullptr, ErrorCode::out_of_memory, "an allocation of {} bytes failed", size_bytes);
    std::memset(data_, 0, size_bytes);
  }
  ~HostMemory() override { std::free(data_); }
  HostMemory(const HostMemory&) = delete;
  HostMemory& operator=(const HostMemory&) = delete;
  void* data() const override { return data_; }
  std::size_t size_bytes() const override { return size_bytes_; }

 private:
  std::size_t size_bytes_;
  void* data_;
};

class HostStream final : public Stream {
 public:
  void wait(const Event& event) override { event.synchronize(); }
  void synchronize() override {}
};

/// Captures nothing, but appears in the list of launches.
class HostGraph final : public CapturedGraph {
 public:
  explicit HostGraph(const cuda::CudaContext& context) : rows_(context, /*together=*/false) {}

 private:
  bool begin(Stream& stream) override {
    cuda_fibers::record_call(kCapturedGraph);
    rows_.begin(stream);
    return true;
  }
  void end(Stream&) override { rows_.end(); }
  void abandon(Stream&) noexcept override { rows_.discard(); }

  cuda::FewRows rows_;
};

class CudaOnHost final : public cuda::OpsBackend {
 public:
  // There are few multiprocessors, so that loops beyond the grid are tested too.
  CudaOnHost(const std::string& convolution, std::shared_ptr<Algorithms> algorithms)
      : OpsBackend(
            {.device = 0, .multiprocessors = 3, .compute_capability = 90, .options = {.convolution = convolution}},
            std::move(algorithms)) {}

  std::string name() const override { return "cuda"; }
  DeviceInfo device() const override {
    return {.name = "CUDA kernels on the host", .memory_bytes = std::size_t{1} << 30, .libraries = {}};
  }
  std::unique_ptr<Memory> allocate(std::size_t size_bytes, const std::string& purpose) override {
    require(!frozen_, ErrorCode::internal, "{}: {} bytes were requested inside a step, where nothing may be allocated",
            purpose, size_bytes);
    return std::make_unique<HostMemory>(size_bytes);
  }
  std::unique_ptr<Memory> allocate_host(std::size_t size_bytes, const std::string&) override {
    return std::make_unique<HostMemory>(size_bytes);
  }
  void freeze() override { frozen_ = true; }
  void unfreeze() override { frozen_ = false; }
  std::unique_ptr<Stream> make_stream(StreamPriority) override { return std::make_unique<HostStream>(); }
  std::unique_ptr<Event> make_event() override { return std::make_unique<HostEvent>(); }
  std::unique_ptr<CapturedGraph> make_captured_graph() override { return std::make_unique<HostGraph>(context()); }
  void copy(void* target, const void* source, std::size_t size_bytes, Stream&) override {
    if (size_bytes > 0) std::memmove(target, source, size_bytes);
  }
  void fill_zero(void* target, std::size_t size_bytes, Stream&) override {
    if (size_bytes > 0) std::memset(target, 0, size_bytes);
  }
  void record_progress(StreamProgress* progress, std::uint64_t what, Stream& stream) override {
    cuda::record_progress(progress, what, stream);
  }
  std::string check_precision(Precision) const override { return ""; }

 private:
  bool frozen_ = false;
};

}  // namespace

std::unique_ptr<Backend> make_cuda_on_host_backend(const std::string& convolution,
                                                   std::shared_ptr<Algorithms> algorithms) {
  return std::make_unique<CudaOnHost>(convolution, std::move(algorithms));
}

}  // namespace lockstep::test

#include "comm/nccl_memory.h"

#include <cstdint>

#include "comm/nccl_library.h"

namespace lockstep::comm {
namespace {

constexpr std::size_t kAlignment = 4096;  // required by Communicator::allocate() and by windows

class NcclMemory final : public Memory {
 public:
  NcclMemory(void* data, std::size_t size_bytes) : data_(data), size_bytes_(size_bytes) {}
  ~NcclMemory() override { LOCKSTEP_NCCL_REPORT(nccl().ncclMemFree(data_)); }
  NcclMemory(const NcclMemory&) = delete;
  NcclMemory& operator=(const NcclMemory&) = delete;

  void* data() const override { return data_; }
  std::size_t size_bytes() const override { return size_bytes_; }

 private:
  void* data_;
  std::size_t size_bytes_;
};

}  // namespace

std::unique_ptr<Memory> allocate_nccl_memory(Backend& backend, Stream& stream, std::size_t size_bytes) {
  void* data = nullptr;
  if (!nccl().has_windows() || size_bytes == 0) return nullptr;
  if (nccl().ncclMemAlloc(&data, size_bytes) != ncclSuccess || data == nullptr) return nullptr;
  auto memory = std::make_unique<NcclMemory>(data, size_bytes);
  if (reinterpret_cast<std::uintptr_t>(data) % kAlignment != 0) return nullptr;
  backend.fill_zero(data, size_bytes, stream);
  stream.synchronize();
  return memory;
}

}  // namespace lockstep::comm

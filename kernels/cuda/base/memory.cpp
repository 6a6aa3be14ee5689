#include "kernels/cuda/base/memory.h"

#include <cuda_runtime_api.h>
#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <cstring>

#include "kernels/cuda/base/check.h"
#include "lockstep/error.h"

namespace lockstep::cuda {
namespace {

double gib(std::size_t size_bytes) { return static_cast<double>(size_bytes) / (1 << 30); }

/// Memory of the device or of the host, which `release` gives back; null: nothing is to be done.
class CudaMemory final : public Memory {
 public:
  CudaMemory(void* data, std::size_t size_bytes, cudaError_t (*release)(void*))
      : data_(data), size_bytes_(size_bytes), release_(release) {}
  ~CudaMemory() override {
    if (release_ != nullptr) LOCKSTEP_CUDA_REPORT(release_(data_));
  }
  CudaMemory(const CudaMemory&) = delete;
  CudaMemory& operator=(const CudaMemory&) = delete;

  void* data() const override { return data_; }
  std::size_t size_bytes() const override { return size_bytes_; }

 private:
  void* data_;
  std::size_t size_bytes_;
  cudaError_t (*release_)(void*);
};

/// Throws if the host has too little memory to pin.
void check_pinned(cudaError_t status, std::size_t size_bytes, const std::string& purpose) {
  if (status != cudaErrorMemoryAllocation) return LOCKSTEP_CUDA_CHECK(status);
  (void)cudaGetLastError();  // clears the error, so that the next call does not report it
  rlimit limit{};
  const bool is_limited = ::getrlimit(RLIMIT_MEMLOCK, &limit) == 0 && limit.rlim_cur < size_bytes;
  fail(ErrorCode::out_of_memory, "{}: {:.3f} GiB of the host's memory cannot be locked{}", purpose, gib(size_bytes),
       is_limited
           ? fmt::format(": the limit is {:.3f} GiB. Run `ulimit -l unlimited` before srun, or ask the operators "
                         "for LimitMEMLOCK=infinity in the service of slurmd",
                         gib(limit.rlim_cur))
           : ": request more memory for the job (sbatch --mem), or use more ranks on more nodes");
}

}  // namespace

std::unique_ptr<Memory> device_memory(std::size_t size_bytes, const std::string& purpose) {
  void* data = nullptr;
  const std::size_t n_bytes = std::max<std::size_t>(size_bytes, 1);
  const cudaError_t status = cudaMalloc(&data, n_bytes);
  if (status == cudaErrorMemoryAllocation) {
    (void)cudaGetLastError();  // clears the error, so that the next call does not report it
    std::size_t free_bytes = 0, total_bytes = 0;
    LOCKSTEP_CUDA_CHECK(cudaMemGetInfo(&free_bytes, &total_bytes));
    fail(ErrorCode::out_of_memory, "{}: {:.3f} GiB are needed, but only {:.3f} GiB of the device's {:.3f} GiB are free",
         purpose, gib(size_bytes), gib(free_bytes), gib(total_bytes));
  }
  LOCKSTEP_CUDA_CHECK(status);
  auto memory = std::make_unique<CudaMemory>(data, size_bytes, cudaFree);
  LOCKSTEP_CUDA_CHECK(cudaMemset(data, 0, n_bytes));
  LOCKSTEP_CUDA_CHECK(cudaStreamSynchronize(nullptr));  // other streams do not wait for this one
  return memory;
}

std::unique_ptr<Memory> pinned_memory(std::size_t size_bytes, const std::string& purpose) {
  void* data = nullptr;
  check_pinned(cudaHostAlloc(&data, std::max<std::size_t>(size_bytes, 1), cudaHostAllocDefault), size_bytes, purpose);
  std::memset(data, 0, size_bytes);
  return std::make_unique<CudaMemory>(data, size_bytes, cudaFreeHost);
}

std::unique_ptr<Memory> pin(void* h_data, std::size_t size_bytes) {
  if (size_bytes > 0)
    check_pinned(cudaHostRegister(h_data, size_bytes, cudaHostRegisterDefault), size_bytes, "memory of the node");
  return std::make_unique<CudaMemory>(h_data, size_bytes, size_bytes > 0 ? cudaHostUnregister : nullptr);
}

}  // namespace lockstep::cuda

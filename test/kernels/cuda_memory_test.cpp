// program: own
// What is said if there is too little memory, tested with a fake runtime. The functions below replace the toolkit's
// library in this program.
#include "kernels/cuda/base/memory.h"

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <functional>

#include "lockstep/error.h"

cudaError_t cudaMalloc(void**, std::size_t) { return cudaErrorMemoryAllocation; }
cudaError_t cudaMemGetInfo(std::size_t* free_bytes, std::size_t* total_bytes) {
  *free_bytes = std::size_t{1} << 30;
  *total_bytes = std::size_t{2} << 30;
  return cudaSuccess;
}
cudaError_t cudaHostAlloc(void**, std::size_t, unsigned) { return cudaErrorMemoryAllocation; }
cudaError_t cudaHostRegister(void*, std::size_t, unsigned) { return cudaErrorMemoryAllocation; }
cudaError_t cudaGetLastError() { return cudaErrorMemoryAllocation; }
// Not reached, or without an effect
cudaError_t cudaFree(void*) { return cudaSuccess; }
cudaError_t cudaFreeHost(void*) { return cudaSuccess; }
cudaError_t cudaHostUnregister(void*) { return cudaSuccess; }
cudaError_t cudaMemset(void*, int, std::size_t) { return cudaSuccess; }
cudaError_t cudaStreamSynchronize(cudaStream_t) { return cudaSuccess; }
cudaError_t cudaGetDevice(int*) { return cudaSuccess; }
const char* cudaGetErrorName(cudaError_t) { return "made up"; }
const char* cudaGetErrorString(cudaError_t) { return "made up"; }

namespace lockstep::cuda {
namespace {

std::string error_of(const std::function<void()>& allocate) {
  try {
    allocate();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::out_of_memory);
    return error.what();
  }
  return "";
}

constexpr std::size_t kThreeGib = std::size_t{3} << 30;

TEST(CudaMemory, SaysHowMuchOfTheDeviceIsFree) {
  EXPECT_EQ(error_of([] { (void)device_memory(kThreeGib, "gradients"); }),
            "gradients: 3.000 GiB are needed, but only 1.000 GiB of the device's 2.000 GiB are free");
}

TEST(CudaMemory, SaysHowToLockMoreOfTheHost) {
  rlimit limit{};
  ASSERT_EQ(::getrlimit(RLIMIT_MEMLOCK, &limit), 0);
  limit.rlim_cur = 4096;
  ASSERT_EQ(::setrlimit(RLIMIT_MEMLOCK, &limit), 0);
  const auto pinned = [](std::size_t size_bytes) {
    return error_of([=] { (void)pinned_memory(size_bytes, "the optimizer's state"); });
  };
  EXPECT_TRUE(
      pinned(1 << 20).starts_with("the optimizer's state: 0.001 GiB of the host's memory cannot be locked: the limit "
                                  "is 0.000 GiB. Run `ulimit -l "))
      << pinned(1 << 20);
  EXPECT_NE(pinned(1024).find("cannot be locked: request more memory for the job (sbatch --mem)"), std::string::npos)
      << pinned(1024);
  int number = 0;
  EXPECT_NE(error_of([&] { (void)pin(&number, 1 << 20); }).find("ulimit -l unlimited"), std::string::npos);
}

}  // namespace
}  // namespace lockstep::cuda

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
  for (const rlim_t locked : {rlim_t{1} << 29, limit.rlim_max}) {
    if (locked > limit.rlim_max) continue;
    const rlimit now{.rlim_cur = locked, .rlim_max = limit.rlim_max};
    ASSERT_EQ(::setrlimit(RLIMIT_MEMLOCK, &now), 0);
    const bool is_limited = locked < kThreeGib;
    const std::string allocated = error_of([] { (void)pinned_memory(kThreeGib, "the optimizer's state"); });
    EXPECT_TRUE(allocated.starts_with("the optimizer's state: 3.000 GiB of the host's memory cannot be locked: "))
        << allocated;
    EXPECT_NE(allocated.find(is_limited ? "ulimit -l unlimited" : "sbatch --mem"), std::string::npos) << allocated;
    int number = 0;
    EXPECT_NE(error_of([&] { (void)pin(&number, kThreeGib); }).find("cannot be locked"), std::string::npos);
  }
}

}  // namespace
}  // namespace lockstep::cuda

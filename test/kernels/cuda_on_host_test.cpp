// The runtime that runs CUDA kernels on the host (test/support/cuda_on_host) must expose faulty kernels. Each fault
// that the tests of kernels should find is made here on purpose, next to the correct kernel, which must be correct in
// every order.
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "test/support/cuda_on_host/runtime.h"

namespace lockstep {
namespace {

constexpr unsigned kThreads = 256, kWarps = kThreads / 32;
constexpr int kLaunches = 20;

enum class Fault { none, no_barrier_before_write, no_barrier_before_read, reads_what_nobody_wrote };

/// Every thread gets the sums of 1 and of 2 over the block, through the same shared memory.
template <Fault kFault>
__global__ void sum_twice(float* sums) {
  __shared__ float shared[kWarps];
  for (int round = 0; round < 2; ++round) {
    float value = static_cast<float>(round + 1);
    for (int distance = 16; distance > 0; distance /= 2) value += __shfl_xor_sync(0xffffffffu, value, distance);
    if (kFault != Fault::no_barrier_before_write) __syncthreads();
    if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = value;
    if (kFault != Fault::no_barrier_before_read) __syncthreads();
    float sum = 0;
    for (float of_warp : shared) sum += of_warp;
    sums[round * kThreads + threadIdx.x] = sum;
  }
}

/// Reverses an array through memory whose size is known only at launch; the faulty kernel reads beyond what was
/// written.
template <Fault kFault>
__global__ void reverse(float* values) {
  float* shared = cuda_fibers::shared_memory<float>();
  shared[threadIdx.x] = values[threadIdx.x];
  __syncthreads();
  values[threadIdx.x] = shared[kThreads - threadIdx.x - (kFault == Fault::reads_what_nobody_wrote ? 0 : 1)];
}

template <Fault kFault>
bool sums_are_right() {
  std::vector<float> sums(2 * kThreads);
  cuda_fibers::run_grid({.threads = kThreads}, [&] { sum_twice<kFault>(sums.data()); });
  for (unsigned i = 0; i < sums.size(); ++i)
    if (sums[i] != static_cast<float>(i < kThreads ? kThreads : 2 * kThreads)) return false;
  return true;
}
template <Fault kFault>
bool is_reversed() {
  std::vector<float> values(kThreads);
  for (unsigned i = 0; i < kThreads; ++i) values[i] = static_cast<float>(i);
  cuda_fibers::run_grid({.threads = kThreads, .shared_bytes = (kThreads + 1) * sizeof(float)},
                        [&] { reverse<kFault>(values.data()); });
  for (unsigned i = 0; i < kThreads; ++i)
    if (values[i] != static_cast<float>(kThreads - 1 - i)) return false;
  return true;
}

/// The number of launches with a correct result. Each launch runs in a different order.
int n_right(bool (*is_right)()) {
  int n = 0;
  for (int i = 0; i < kLaunches; ++i) n += is_right() ? 1 : 0;
  return n;
}

}  // namespace

TEST(CudaOnHost, CorrectKernelsAreCorrectInEveryOrder) {
  EXPECT_EQ(n_right(sums_are_right<Fault::none>), kLaunches);
  EXPECT_EQ(n_right(is_reversed<Fault::none>), kLaunches);
}

// The sum is read before all threads have written. The first launch finds no sums left from an earlier one.
TEST(CudaOnHost, DetectsAMissingBarrierBeforeARead) {
  EXPECT_EQ(n_right(sums_are_right<Fault::no_barrier_before_read>), 0);
}

// The second sum is written before all threads have read the first one.
TEST(CudaOnHost, DetectsAMissingBarrierBeforeAWrite) {
  EXPECT_EQ(n_right(sums_are_right<Fault::no_barrier_before_write>), 0);
}

TEST(CudaOnHost, SharedMemoryIsNotZero) { EXPECT_EQ(n_right(is_reversed<Fault::reads_what_nobody_wrote>), 0); }

TEST(CudaOnHostDeathTest, DetectsABarrierThatSomeLanesDoNotReach) {
  const auto diverge = [] {
    if (threadIdx.x % 2 == 0)
      __syncthreads();
    else
      __syncwarp();
  };
  EXPECT_DEATH(cuda_fibers::run_grid({.threads = 32}, diverge), "some lanes of a warp wait in a shuffle");
}

}  // namespace lockstep

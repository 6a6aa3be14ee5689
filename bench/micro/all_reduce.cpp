// The communicator alone, on as many ranks as it is launched with: mpirun -n 2 build/bench/micro/all_reduce.
// Columns: bytes a rank holds; median seconds of an all-reduce; algorithm bandwidth, bytes / seconds; bus bandwidth,
// the same times 2 (R-1) / R, what an ideal one moves through each rank's link, so that it can be compared between
// numbers of ranks (nccl-tests, doc/PERFORMANCE.md).
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <vector>

#include "comm/world.h"
#include "lockstep/communicator.h"

int main(int argc, char** argv) {
  using namespace lockstep;  // NOLINT
  constexpr std::size_t kLargest = std::size_t{128} << 20;
  constexpr int kRepetitions = 9;
  const auto world = comm::start_world(&argc, &argv);
  const auto communicator = comm::make_communicator({}, *world);
  const auto memory = communicator->allocate(kLargest, "benchmark");
  const auto done = communicator->make_event();
  const HostEvent ready;
  const double ranks = world->size();
  if (world->rank() == 0)
    std::printf("# %s\n%14s %12s %12s %12s\n", communicator->describe().c_str(), "bytes", "seconds", "alg GB/s",
                "bus GB/s");
  for (std::size_t bytes = 4096; bytes <= kLargest; bytes *= 8) {
    std::vector<double> seconds;
    for (int repetition = 0; repetition < kRepetitions; ++repetition) {
      world->barrier();
      const auto begin = std::chrono::steady_clock::now();
      communicator->all_reduce_async({memory->data(), bytes / 4, DType::fp32}, ready, *done, "benchmark");
      done->synchronize();
      seconds.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
    }
    std::nth_element(seconds.begin(), seconds.begin() + kRepetitions / 2, seconds.end());
    const double median = seconds[kRepetitions / 2], bandwidth = static_cast<double>(bytes) / median / 1e9;
    if (world->rank() == 0)
      std::printf("%14zu %12.6f %12.2f %12.2f\n", bytes, median, bandwidth, bandwidth * 2 * (ranks - 1) / ranks);
  }
  world->barrier();
  return 0;
}

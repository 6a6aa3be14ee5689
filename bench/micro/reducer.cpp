// Communication between ranks, on as many ranks as it is launched with: mpirun -n 2 build/bench/micro/reducer.
//
//   sum/...         the sum in shared memory: each rank adds up its shard of all ranks' slices, and writes it to all
//   all_reduce/...  the communicator, including waking its threads and waiting for the last rank
//   reducer/...     a step's gradients in buckets of the given MB, all at once, not overlapped with a backward pass
//
// Columns: alg GB/s is bytes / seconds. bus GB/s is that times 2 (R-1) / R, which is what an ideal algorithm moves
// through each rank's link, so it can be compared between numbers of ranks (nccl-tests, doc/PERFORMANCE.md). % of copy:
// all ranks read all slices once and write them once, relative to `memcpy` on all ranks at the same time. Times are
// medians, so that all ranks do the same number of repetitions.
#include <algorithm>
#include <array>
#include <cmath>
#include <fstream>
#include <vector>

#include "bench/micro/support.h"
#include "comm/buckets.h"
#include "comm/sum.h"
#include "comm/world.h"
#include "test/comm/bucket_list.h"

namespace lockstep::bench {
namespace {

constexpr int kRepetitions = 15;

struct Ranks {
  World& world;
  Communicator& communicator;
  double copy_bytes_per_second;  // of all ranks together, at the same time

  /// One iteration. Its time is the median of kRepetitions runs of `work`, which all ranks start at the same time.
  template <typename Work>
  void measure(benchmark::State& state, std::size_t size_bytes, const Work& work) const {
    const auto run = [&] {
      world.barrier();
      const auto begin = std::chrono::steady_clock::now();
      work();
      return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    };
    run();  // touches all memory
    std::array<double, kRepetitions> seconds{};
    for (auto _ : state) {
      std::ranges::generate(seconds, run);
      std::ranges::nth_element(seconds, seconds.begin() + kRepetitions / 2);
      state.SetIterationTime(seconds[kRepetitions / 2]);
    }
    const auto ranks = static_cast<double>(world.size()), bytes = static_cast<double>(size_bytes);
    const double bytes_per_second = bytes / seconds[kRepetitions / 2];
    state.counters["alg GB/s"] = bytes_per_second / 1e9;
    state.counters["bus GB/s"] = bytes_per_second * 2 * (ranks - 1) / ranks / 1e9;
    state.counters["% of copy"] = 100 * 2 * ranks * bytes_per_second / copy_bytes_per_second;
  }
};

/// Every rank must do the same work, so each benchmark runs exactly once on all of them.
template <typename Body>
void add_collective(const std::string& name, const Body& body) {
  add_untimed(name, body)->UseManualTime()->Iterations(1);
}

std::string text(std::size_t size_bytes) {
  return size_bytes < 1 << 20 ? std::to_string(size_bytes >> 10) + "KiB" : std::to_string(size_bytes >> 20) + "MiB";
}

void add_sum(const Ranks& ranks, std::size_t size_bytes) {
  add_collective("sum/" + text(size_bytes), [&ranks, size_bytes](benchmark::State& state) {
    // Slices in this process stand in for those of the other ranks.
    const auto n_ranks = static_cast<std::size_t>(ranks.world.size());
    const std::size_t part_bytes = size_bytes / n_ranks;
    Arguments arguments;
    std::vector<std::byte*> slices(n_ranks);
    SumOrder order{std::vector<int>(n_ranks, 1)};
    order.merges[0] = 0;
    for (std::byte*& slice : slices)
      slice = reinterpret_cast<std::byte*>(arguments.make(static_cast<std::int64_t>(part_bytes / sizeof(float))));
    const std::vector<const std::byte*> sources(slices.begin(), slices.end());
    ranks.measure(state, size_bytes,
                  [&] { comm::sum(sources, slices, part_bytes / sizeof(float), DType::fp32, order); });
  });
}

void add_all_reduce(const Ranks& ranks, std::size_t size_bytes) {
  add_collective("all_reduce/" + text(size_bytes), [&ranks, size_bytes](benchmark::State& state) {
    const auto memory = ranks.communicator.allocate(size_bytes, "benchmark");
    const auto done = ranks.communicator.make_event();
    const HostEvent ready;
    ranks.measure(state, size_bytes, [&] {
      ranks.communicator.all_reduce_async({memory->data(), size_bytes / sizeof(float), DType::fp32}, ready, *done,
                                          "benchmark");
      done->synchronize();
    });
  });
}

/// As many gradients as ResNet-18 has, in tensors of 1 MiB.
void add_reducer(const Ranks& ranks, int bucket_mb) {
  add_collective("reducer/45MB/buckets_of_" + std::to_string(bucket_mb) + "MB",
                 [&ranks, bucket_mb](benchmark::State& state) {
                   constexpr std::size_t kTensors = 43, kElements = std::size_t{1} << 18,
                                         kBytes = kTensors * kElements * sizeof(float);
                   std::vector<comm::GradientTensor> tensors;
                   for (std::size_t i = 0; i < kTensors; ++i) tensors.push_back({"gradient", i * kElements, kElements});
                   const auto memory = ranks.communicator.allocate(kBytes, "benchmark");
                   const auto stream = backend().make_stream();
                   graph::StepList list = comm::list_of_buckets(
                       comm::make_buckets(tensors, static_cast<std::size_t>(bucket_mb) * 1'000'000), kTensors,
                       static_cast<float*>(memory->data()), [](std::size_t, Stream&) {}, ranks.communicator, backend());
                   ranks.measure(state, kBytes, [&] { list.queue(*stream); });
                 });
}

double copy_bandwidth_of_all(World& world) {
  world.barrier();
  const double mine = measure_copy_bandwidth();
  double all = 0;
  for (const std::string& bytes : world.all_gather({reinterpret_cast<const char*>(&mine), sizeof mine})) {
    double one = 0;
    std::memcpy(&one, bytes.data(), sizeof one);
    all += one;
  }
  return all;
}

int run(World& world, int argc, char** argv) {
  const auto communicator = comm::make_communicator({}, world, backend());
  const Ranks ranks{world, *communicator, copy_bandwidth_of_all(world)};
  for (const std::size_t size : {64 << 10, 1 << 20, 16 << 20, 128 << 20}) add_sum(ranks, size);
  for (const std::size_t size : {4 << 10, 64 << 10, 1 << 20, 16 << 20, 128 << 20}) add_all_reduce(ranks, size);
  for (const int bucket_mb : {1, 5, 25}) add_reducer(ranks, bucket_mb);

  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  benchmark::AddCustomContext("communicator", communicator->describe());
  benchmark::AddCustomContext("copy bandwidth of all ranks",
                              std::to_string(std::lround(ranks.copy_bytes_per_second / 1e9)) + " GB/s");
  if (world.rank() == 0) {
    benchmark::RunSpecifiedBenchmarks();
  } else {  // takes part, but prints nothing
    std::ofstream nowhere;
    benchmark::ConsoleReporter silent;
    silent.SetOutputStream(&nowhere);
    silent.SetErrorStream(&nowhere);
    benchmark::RunSpecifiedBenchmarks(&silent);
  }
  world.barrier();
  return 0;
}

}  // namespace
}  // namespace lockstep::bench

int main(int argc, char** argv) {
  const auto world = lockstep::comm::start_world(&argc, &argv);
  return lockstep::bench::run(*world, argc, argv);
}

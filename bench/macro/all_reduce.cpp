// The time of an all-reduce over all ranks, of Lockstep's communicator for CPUs or of MPI_Allreduce. Used by
// bench/macro/links.py. Prints one JSON object: the seconds of each repetition, of the slowest rank.
//
//   mpirun -n 4 all_reduce lockstep|mpi BYTES REPETITIONS
//
// One more all-reduce comes first and is not counted, since it opens the connections and touches all memory.
#include <fmt/format.h>
#include <mpi.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <nlohmann/json.hpp>
#include <string_view>
#include <vector>

#include "comm/world.h"
#include "lockstep/backend.h"
#include "lockstep/error.h"

namespace lockstep {
namespace {

std::vector<double> seconds_of(int repetitions, const std::function<void()>& all_reduce,
                               const std::function<void()>& barrier) {
  std::vector<double> seconds;
  for (int i = 0; i <= repetitions; ++i) {
    barrier();
    const auto begin = std::chrono::steady_clock::now();
    all_reduce();
    if (i > 0) seconds.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  }
  return seconds;
}

void print(const std::vector<double>& seconds) { fmt::print("{}\n", nlohmann::json{{"seconds", seconds}}.dump()); }

void measure_lockstep(int* argc, char*** argv, std::size_t size_bytes, int repetitions) {
  const auto world = comm::start_world(argc, argv);
  const auto backend = make_backend({.device = "cpu", .threads = 1});
  const auto communicator = comm::make_communicator({}, *world, *backend);
  const auto memory = communicator->allocate(size_bytes, "benchmark");
  const auto ready = backend->make_event();
  const auto done = communicator->make_event();
  std::vector<double> seconds = seconds_of(
      repetitions,
      [&] {
        communicator->all_reduce_async({.data = memory->data(), .n_elements = size_bytes / sizeof(float)}, *ready,
                                       *done, "benchmark");
        done->synchronize();
      },
      [&] { world->barrier(); });
  for (double& time : seconds)
    for (const std::string& text : world->all_gather(fmt::format("{}", time))) time = std::max(time, std::stod(text));
  if (world->rank() == 0) print(seconds);
}

void measure_mpi(int* argc, char*** argv, std::size_t size_bytes, int repetitions) {
  MPI_Init(argc, argv);
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  std::vector<float> values(size_bytes / sizeof(float));
  std::vector<double> seconds = seconds_of(
      repetitions,
      [&] {
        MPI_Allreduce(MPI_IN_PLACE, values.data(), static_cast<int>(values.size()), MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
      },
      [] { MPI_Barrier(MPI_COMM_WORLD); });
  MPI_Allreduce(MPI_IN_PLACE, seconds.data(), static_cast<int>(seconds.size()), MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
  if (rank == 0) print(seconds);
  MPI_Finalize();
}

}  // namespace
}  // namespace lockstep

int main(int argc, char** argv) {
  using namespace lockstep;
  require(argc == 4, ErrorCode::usage, "all_reduce lockstep|mpi BYTES REPETITIONS");
  const bool is_mpi = std::string_view(argv[1]) == "mpi";
  const std::size_t size_bytes = std::strtoull(argv[2], nullptr, 10);
  const int repetitions = std::atoi(argv[3]);
  (is_mpi ? measure_mpi : measure_lockstep)(&argc, &argv, size_bytes, repetitions);
  return 0;
}

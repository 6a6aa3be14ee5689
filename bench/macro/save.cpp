// Checkpoints compared with dd: all ranks together save MB megabytes, then rank 0 writes the same amount with `dd
// conv=fsync` in the same directory, and so on for ROUNDS rounds. Prints one JSON object to standard output; used by
// bench/check.py.
//
//   mpirun -n 2 save DIRECTORY MB ROUNDS
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "comm/world.h"
#include "lockstep/error.h"

namespace lockstep {
namespace {

constexpr std::int64_t kTensorBytes = 9'437'184;  // the largest of ResNet-18: 512 x 512 x 3 x 3

std::vector<checkpoint::TensorSource> tensors_of(double mb) {
  std::vector<checkpoint::TensorSource> tensors;
  const auto n = std::max<std::int64_t>(1, static_cast<std::int64_t>(mb * 1e6) / kTensorBytes);
  for (std::int64_t i = 0; i < n; ++i)
    tensors.push_back({fmt::format("/parameters/{:04}", i), Shape{kTensorBytes / 4},
                       [i](std::span<float> out) { std::ranges::fill(out, static_cast<float>(i)); }});
  return tensors;
}

template <typename Work>
double seconds_of(World& world, Work work) {
  world.barrier();
  const auto begin = std::chrono::steady_clock::now();
  work();
  world.barrier();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

int run(World& world, const std::string& directory, double mb, int rounds) {
  const auto tensors = tensors_of(mb);
  const std::string file = directory + "/save.h5", raw = directory + "/dd.bin";
  const double size_mb = static_cast<double>(tensors.size() * kTensorBytes) / 1e6;
  const std::string dd =
      fmt::format("dd if=/dev/zero of={} bs={} count={} conv=fsync status=none", raw, kTensorBytes, tensors.size());
  std::vector<double> saved, written;
  for (int round = 0; round < rounds; ++round) {
    saved.push_back(size_mb / seconds_of(world, [&] { checkpoint::save(file, tensors, {{"step", round}}, world); }));
    written.push_back(size_mb / seconds_of(world, [&] {
                        if (world.rank() != 0) return;
                        require(std::system(dd.c_str()) == 0, ErrorCode::system_call, "{} failed", dd);
                        std::filesystem::remove(raw);
                      }));
    if (world.rank() == 0) std::filesystem::remove(file);
  }
  if (world.rank() == 0)
    fmt::print("{}\n", nlohmann::json{{"size_mb", size_mb}, {"save_mb_per_s", saved}, {"dd_mb_per_s", written}}.dump());
  return 0;
}

}  // namespace
}  // namespace lockstep

int main(int argc, char** argv) {
  const auto world = lockstep::comm::start_world(&argc, &argv);
  lockstep::require(argc == 4, lockstep::ErrorCode::usage, "save DIRECTORY MB ROUNDS");
  return lockstep::run(*world, argv[1], std::atof(argv[2]), std::atoi(argv[3]));
}

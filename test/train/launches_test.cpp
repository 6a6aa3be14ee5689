// The kernels that a training step of ResNet-50 launches, counted from the list of launches of the emulated kernels.
// timeout: 600
// sanitizers: no
#include <gtest/gtest.h>

#ifdef LOCKSTEP_CUDA
#include <cstdio>
#include <map>
#include <string>

#include "test/support/cuda_on_host/backend.h"
#include "test/support/cuda_on_host/launches.h"
#include "test/train/small_run.h"

namespace lockstep {
namespace {

/// All channels are used, so that the buckets are those of a real training. Images are small, since their size does not
/// change the number of kernels.
Config resnet50() {
  Config config = test::resnet50_config(64, 2);
  config.data.augment = {"flip"};
  return config;
}

std::map<std::string, int> launches_of_a_step(const Config& config) {
  const auto backend = test::make_cuda_on_host_backend("chain");
  const auto world = comm::single_world();
  const auto communicator = comm::make_communicator(config.comm, *world, *backend);
  test::SmallRun run(config, *backend, *communicator);
  run.step(0);  // the first step also rounds the initial weights
  cuda_fibers::LaunchList list;
  run.step(1);
  std::map<std::string, int> by_kind;
  for (const std::string& launch : list.launches)
    if (launch != test::kCapturedGraph) ++by_kind[launch];
  return by_kind;
}

/// Counted are every launch of our own kernels, and one for each call of cuDNN or cuBLASLt, whose plans may consist of
/// more than one kernel. Not counted are copies and fills of memory, and NCCL's kernels. docs/gpus.md, "The kernels of
/// a step", lists what has to be launched.
TEST(Launches, OfAStepOfResNet50) {
  constexpr int kConvolutions = 53, kGraphs = 3 * kConvolutions - 1, kBlocksWithTwoNorms = 4, kMost = 285;
  int all = 0, of_cudnn = 0, of_norms = 0, n_roundings = 0;
  for (const auto& [kind, n] : launches_of_a_step(resnet50())) {
    std::printf("%4d  %s\n", n, kind.c_str());
    all += n;
    if (kind.starts_with("cudnn")) of_cudnn += n;
    if (kind.find("BatchNorm") != std::string::npos) of_norms += n;
    if (kind.starts_with("void (*)(float const*, __half*,")) n_roundings += n;
  }
  std::printf("%4d  in total\n", all);
  EXPECT_EQ(of_cudnn, kGraphs);
  EXPECT_LE(of_norms, 2 * (kConvolutions - kBlocksWithTwoNorms));
  EXPECT_EQ(n_roundings, 0) << "the optimizer writes the weights in 16 bits, and norms scale and bias";
  EXPECT_LE(all, kMost);
}

}  // namespace
}  // namespace lockstep
#endif

// Spans as a profiler sees them, by one of the tests' own (fake_nvtx.cpp): this program starts itself again under it.
#include "kernels/cuda/base/nvtx.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>

#include "lockstep/trace.h"

namespace lockstep::cuda {
namespace {

std::string log_path() { return testing::TempDir() + "nvtx." + std::to_string(::getpid()); }

TEST(Nvtx, SpansAreRangesOfTheirThread) {
  ASSERT_TRUE(attach_profiler());
  ASSERT_TRUE(attach_profiler());  // a second backend: each range still once
  std::filesystem::resize_file(std::getenv("FAKE_NVTX_LOG"), 0);
  {
    const trace::Span step(trace::Kind::step, "step", 7);
    { const trace::Span layer(trace::Kind::forward, std::string_view("layer1.0.conv1, and more").substr(0, 14)); }
    std::thread([] { const trace::Span bucket(trace::Kind::all_reduce, "bucket 1"); }).join();
  }
  std::ifstream file(std::getenv("FAKE_NVTX_LOG"));
  EXPECT_EQ(std::string(std::istreambuf_iterator<char>(file), {}),
            "0 step 7\n1 layer1.0.conv1\n1 end\n0 bucket 1\n0 end\n0 end\n");
  EXPECT_TRUE(trace::events().empty()) << "nothing is kept for a trace.json that nobody asked for";
}

TEST(Nvtx, SpansGoToTheTraceToo) {
  ASSERT_TRUE(attach_profiler());
  trace::start(16);
  { const trace::Span span(trace::Kind::update, "optimizer"); }
  ASSERT_EQ(trace::events().size(), 1u);
  ASSERT_EQ(trace::events()[0].events.size(), 1u);
  EXPECT_STREQ(trace::events()[0].events[0].name, "optimizer");
}

int without_profiler() { return !attach_profiler() && !trace::is_on.load() ? 0 : 1; }

TEST(Nvtx, CostsABranchWithoutAProfiler) {
  EXPECT_EXIT(
      {
        ::unsetenv("NVTX_INJECTION64_PATH");
        ::execl("/proc/self/exe", "nvtx_test", "without", nullptr);
      },
      testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace lockstep::cuda

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  if (argc > 1) return lockstep::cuda::without_profiler();
  if (std::getenv("FAKE_NVTX_LOG") == nullptr) {
    const auto here = std::filesystem::read_symlink("/proc/self/exe").parent_path();
    ::setenv("NVTX_INJECTION64_PATH", (here / "fake_nvtx.so").c_str(), 1);
    ::setenv("FAKE_NVTX_LOG", lockstep::cuda::log_path().c_str(), 1);
    ::execv("/proc/self/exe", argv);
  }
  const int status = RUN_ALL_TESTS();
  std::filesystem::remove(std::getenv("FAKE_NVTX_LOG"));
  return status;
}

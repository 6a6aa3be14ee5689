// Spans as a profiler sees them: a fake profiler (fake_nvtx.cpp) writes them to a file.
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
#include "test/support/program.h"

namespace lockstep::cuda {
namespace {

class Nvtx : public ::testing::Test {
 protected:
  /// NVTX looks for a profiler at the first span in the process.
  static void SetUpTestSuite() {
    ::setenv("NVTX_INJECTION64_PATH", (test::folder_of_tests() / "kernels/fake_nvtx.so").c_str(), 1);
    ::setenv("FAKE_NVTX_LOG", log_path().c_str(), 1);
    std::ofstream(log_path()).flush();
  }
  static void TearDownTestSuite() {
    std::filesystem::remove(log_path());
    ::unsetenv("NVTX_INJECTION64_PATH");
  }
  static std::string log_path() { return testing::TempDir() + "nvtx." + std::to_string(::getpid()); }
};

TEST_F(Nvtx, SpansAreRangesOfTheirThread) {
  ASSERT_TRUE(attach_profiler());
  ASSERT_TRUE(attach_profiler());  // with a second backend, each range still appears once
  std::filesystem::resize_file(log_path(), 0);
  {
    const trace::Span step(trace::Kind::step, "step", 7);
    { const trace::Span layer(trace::Kind::forward, std::string_view("layer1.0.conv1, and more").substr(0, 14)); }
    std::thread([] { const trace::Span bucket(trace::Kind::all_reduce, "bucket 1"); }).join();
  }
  std::ifstream file(log_path());
  EXPECT_EQ(std::string(std::istreambuf_iterator<char>(file), {}),
            "0 step 7\n1 layer1.0.conv1\n1 end\n0 bucket 1\n0 end\n0 end\n");
  EXPECT_TRUE(trace::events().empty()) << "events are kept although trace is false";
}

TEST_F(Nvtx, SpansGoToTheTraceToo) {
  ASSERT_TRUE(attach_profiler());
  trace::start(16);
  { const trace::Span span(trace::Kind::update, "optimizer"); }
  ASSERT_EQ(trace::events().size(), 1u);
  ASSERT_EQ(trace::events()[0].events.size(), 1u);
  EXPECT_STREQ(trace::events()[0].events[0].name, "optimizer");
}

int without_profiler(int, char**) { return !attach_profiler() && !trace::is_on.load() ? 0 : 1; }

const test::Role role("without-profiler", without_profiler);

TEST_F(Nvtx, IsOffWithoutAProfiler) {
  EXPECT_EXIT(
      {
        ::unsetenv("NVTX_INJECTION64_PATH");
        ::execl("/proc/self/exe", "kernels_test", "--without-profiler", nullptr);
      },
      testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace lockstep::cuda

// program: own
// The handle of cuDNN, with a fake library (fake_cudnn.cpp) that has the name of cuDNN: once it is loaded, the program
// finds it.
#include "kernels/cuda/base/cudnn.h"

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "test/support/program.h"

// They replace the toolkit's library, which needs a device.
cudaError_t cudaSetDevice(int) { return cudaSuccess; }
cudaError_t cudaGetDevice(int*) { return cudaErrorNoDevice; }
const char* cudaGetErrorString(cudaError_t) { return "made up"; }

namespace lockstep::cuda {
namespace {

// Plans are made after others were timed on streams that no longer exist.
TEST(CudnnHandle, HasNoStreamOfAnEarlierRun) {
  const std::string path = test::folder_of_tests() / "fake_cudnn.so";
  ::setenv("CUDNN_FRONTEND_CUDART_LIB_NAME", path.c_str(), 1);
  void* const library = ::dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL);
  ASSERT_NE(library, nullptr) << ::dlerror();
  const auto stream_of_handle = reinterpret_cast<void* (*)()>(::dlsym(library, "fake_stream"));
  int destroyed = 0;
  set_stream(cudnn_handle(0), reinterpret_cast<cudaStream_t>(&destroyed));
  EXPECT_EQ(stream_of_handle(), &destroyed);
  (void)cudnn_handle(0);
  EXPECT_EQ(stream_of_handle(), nullptr);
}

}  // namespace
}  // namespace lockstep::cuda

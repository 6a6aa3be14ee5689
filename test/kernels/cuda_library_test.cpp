// Where CUDA libraries are found: in folders named by the environment, and where PyTorch's wheels keep them.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>

#include "kernels/cuda/base/library.h"
#include "lockstep/error.h"
#include "test/support/program.h"

namespace lockstep::cuda {
namespace {

namespace fs = std::filesystem;

/// A folder like site-packages/nvidia, where a library can be placed in the folder of a wheel.
class CudaLibraries : public testing::Test {
 protected:
  CudaLibraries() {
    for (const char* variable : {"CUDNN_HOME", "CUDA_HOME"}) ::unsetenv(variable);
    static int n_made = 0;  // a new path each time, because a loaded library is identified by its path
    root_ = fs::temp_directory_path() / ("wheels." + std::to_string(::getpid()) + "." + std::to_string(n_made++));
  }
  ~CudaLibraries() override {
    for (const char* variable : {"CUDNN_HOME", "CUDA_HOME"}) ::unsetenv(variable);
    fs::remove_all(root_);
  }

  std::string put(const std::string& wheel, const std::string& file) {
    const fs::path folder = root_ / wheel / "lib";
    fs::create_directories(folder);
    fs::copy_file(test::folder_of_tests() / "kernels" / "fake_nvtx.so", folder / file);
    return folder / file;
  }

  fs::path root_;
};

TEST_F(CudaLibraries, AreFoundBelowTheHomesOfTheEnvironment) {
  const std::string path = put("toolkit", "libmadeup.so.13");
  EXPECT_EQ(open_library("libmadeup.so.13").handle, nullptr);
  ::setenv("CUDA_HOME", (root_ / "toolkit").c_str(), 1);
  const OpenedLibrary opened = open_library("libmadeup.so.13");
  EXPECT_NE(opened.handle, nullptr) << opened.reason;
  EXPECT_EQ(opened.path, path);
}

TEST_F(CudaLibraries, AreFoundInTheWheelsBesideThatOfCudnn) {
  const std::string of_cuda13 = put("cu13", "libmadeup.so.13"), of_cuda12 = put("cuda_runtime", "libmadeup.so.12");
  ::setenv("CUDNN_HOME", (root_ / "cudnn").c_str(), 1);
  fs::create_directories(root_ / "cudnn");
  EXPECT_NE(open_library("libmadeup.so.13").handle, nullptr);
  EXPECT_NE(open_library("libmadeup.so.12").handle, nullptr);
  EXPECT_EQ(open_library("libmadeup.so.11").handle, nullptr);
}

TEST_F(CudaLibraries, AreFoundInTheWheelsBesideALibraryThatIsOpen) {
  const std::string neighbour = put("cudnn", "libneighbour.so.9");
  put("cu13", "libmadeup.so.13");
  EXPECT_EQ(open_library("libmadeup.so.13").handle, nullptr);
  EXPECT_NE(open_library("libmadeup.so.13", neighbour).handle, nullptr);
}

TEST_F(CudaLibraries, AreNamedIfTheyAreMissing) {
  try {
    const Library missing("the CUDA runtime", "libmadeup.so.13");
    ADD_FAILURE() << "a library that does not exist was opened";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::not_supported);
    const std::string text = error.what();
    EXPECT_NE(text.find("the CUDA runtime is needed on a GPU, and libmadeup.so.13 could not be opened"),
              std::string::npos)
        << text;
  }
}

}  // namespace
}  // namespace lockstep::cuda

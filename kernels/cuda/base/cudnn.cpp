#include "kernels/cuda/base/cudnn.h"

#include <cstdlib>
#include <map>

#include "kernels/cuda/base/library.h"
#include "lockstep/error.h"

// If cudnn-frontend is compiled to load cuDNN at run time, it looks up functions in this handle.
namespace cudnn_frontend {
void* cudnn_dlhandle = nullptr;
}

namespace lockstep::cuda {
namespace {

constexpr std::size_t kOldest = 90800;  // the first version that plans from the description of a device
constexpr int kCudaMajor = CUDART_VERSION / 1000;
constexpr const char* kRuntimeVariable = "CUDNN_FRONTEND_CUDART_LIB_NAME";  // cudnn-frontend reads it

struct Functions {
  Functions() {
    require(version() >= kOldest && version() / 10000 == CUDNN_MAJOR, ErrorCode::not_supported,
            "this program needs cuDNN {}, {} or newer, but found {}: load another cuDNN module",
            cudnn_version_compiled(), dotted(kOldest), dotted(version()));
    cudnn_frontend::cudnn_dlhandle = library.handle();
    // cuDNN compiles some plans with NVRTC. It searches only where the dynamic loader does, which also finds libraries
    // that are already open.
    open_library(fmt::format("libnvrtc.so.{}", kCudaMajor), library.path());
    setenv(kRuntimeVariable, runtime.path().c_str(), /*overwrite=*/1);
  }

  Library library{"cuDNN " + std::to_string(CUDNN_MAJOR), "libcudnn.so." + std::to_string(CUDNN_MAJOR)};
  // cudnn-frontend uses the shared library of the CUDA runtime to clear memory and to capture plans that are compiled
  // at run time, although our runtime is linked statically. By itself, it would open an older one if there are several,
  // and throw in the middle of a step if there is none.
  Library runtime{"the CUDA runtime", cuda_runtime_file(), library.path()};
  decltype(&cudnnGetVersion) version = library.function<decltype(cudnnGetVersion)>("cudnnGetVersion");
  decltype(&cudnnGetErrorString) text = library.function<decltype(cudnnGetErrorString)>("cudnnGetErrorString");
  decltype(&cudnnCreate) create = library.function<decltype(cudnnCreate)>("cudnnCreate");
  decltype(&cudnnSetStream) set_stream = library.function<decltype(cudnnSetStream)>("cudnnSetStream");
};

const Functions& functions() {
  static const Functions instance;
  return instance;
}

}  // namespace

std::string cuda_runtime_file() {
  const char* const chosen = std::getenv(kRuntimeVariable);
  return chosen != nullptr && *chosen != '\0' ? chosen : fmt::format("libcudart.so.{}", kCudaMajor);
}

std::string cudnn_version() { return dotted(functions().version()); }
std::string cudnn_version_compiled() { return dotted(CUDNN_VERSION); }
void* cudnn_library() { return functions().library.handle(); }

cudnnHandle_t cudnn_handle(int device) {
  static std::map<int, cudnnHandle_t> handles;  // never destroyed: contexts are destroyed in no fixed order at exit
  cudnnHandle_t& handle = handles[device];
  if (!handle) {
    LOCKSTEP_CUDA_CHECK(cudaSetDevice(device));
    LOCKSTEP_CUDA_CHECK(functions().create(&handle));
  }
  set_stream(handle, nullptr);  // the stream of the last run may be destroyed by now
  return handle;
}

void set_stream(cudnnHandle_t handle, cudaStream_t stream) {
  LOCKSTEP_CUDA_CHECK(functions().set_stream(handle, stream));
}

void check(cudnnStatus_t status, const Place& place) {
  if (status != CUDNN_STATUS_SUCCESS) throw_failure("cuDNN", status, functions().text(status), place);
}

}  // namespace lockstep::cuda

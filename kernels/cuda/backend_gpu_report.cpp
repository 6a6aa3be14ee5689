#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <fmt/format.h>

#include "kernels/cuda/backend.h"
#include "kernels/cuda/base/check.h"
#include "kernels/cuda/base/cudnn.h"
#include "kernels/cuda/base/library.h"
#include "kernels/cuda/base/nvml.h"

namespace lockstep::cuda {
namespace {

std::string cuda_version(int version) { return fmt::format("{}.{}", version / 1000, version % 1000 / 10); }

/// `version_of` returns the version, using the function whose address it gets. The ops search the same folders.
template <typename VersionOf>
GpuReport::Library probe(const std::string& name, const OpenedLibrary& opened, const std::string& file,
                         const char* version_function, const VersionOf& version_of) {
  GpuReport::Library library{.name = name, .version = "", .problem = ""};
  if (opened.handle == nullptr) {
    library.problem = fmt::format("{} cannot be loaded ({})", file, opened.reason);
    return library;
  }
  if (void* const function = ::dlsym(opened.handle, version_function))
    library.version = version_of(function);
  else
    library.problem = fmt::format("{} lacks {}", file, version_function);
  return library;
}

int attribute(cudaDeviceAttr which, int device) {
  int value = 0;
  LOCKSTEP_CUDA_CHECK(cudaDeviceGetAttribute(&value, which, device));
  return value;
}

GpuReport::Gpu describe(int device) {
  cudaDeviceProp properties{};
  LOCKSTEP_CUDA_CHECK(cudaGetDeviceProperties(&properties, device));
  GpuReport::Gpu gpu;
  gpu.name = properties.name;
  gpu.uuid = uuid_of(device);
  gpu.pci_bus = pci_bus_of(device);
  gpu.compute_capability = fmt::format("{}.{}", properties.major, properties.minor);
  gpu.multiprocessors = properties.multiProcessorCount;
  gpu.clock_mhz = 1e-3 * attribute(cudaDevAttrClockRate, device);
  gpu.memory_bytes = properties.totalGlobalMem;
  if (const Nvml* nvml = Nvml::get()) {
    gpu.usage = nvml->usage(gpu.pci_bus);
    gpu.nvlinks = nvml->health(gpu.pci_bus).nvlinks_active;
  }
  return gpu;
}

}  // namespace

std::string uuid_of(int device) {
  cudaDeviceProp properties{};
  LOCKSTEP_CUDA_CHECK(cudaGetDeviceProperties(&properties, device));
  std::string text = "GPU-";
  for (int i = 0; i < 16; ++i)
    text += fmt::format("{}{:02x}", i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "",
                        static_cast<unsigned char>(properties.uuid.bytes[i]));
  return text;
}

std::string pci_bus_of(int device) {
  char text[32] = {};
  LOCKSTEP_CUDA_CHECK(cudaDeviceGetPCIBusId(text, sizeof(text), device));
  return text;
}

std::vector<GpuReport::Library> libraries() {
  const auto version = [](void* function) { return dotted(reinterpret_cast<std::size_t (*)()>(function)()); };
  const auto runtime_version = [](void* function) {
    int version = 0;
    (void)reinterpret_cast<cudaError_t (*)(int*)>(function)(&version);
    return cuda_version(version);
  };
  const std::string cudnn = "libcudnn.so.9", cublas = fmt::format("libcublasLt.so.{}", CUDART_VERSION / 1000),
                    runtime = cuda_runtime_file();
  const OpenedLibrary opened = open_library(cudnn);
  return {probe("cuDNN", opened, cudnn, "cudnnGetVersion", version),
          probe("cuBLASLt", open_library(cublas), cublas, "cublasLtGetVersion", version),
          probe("CUDA runtime", open_library(runtime, opened.path), runtime, "cudaRuntimeGetVersion", runtime_version)};
}

GpuReport gpu_report() {
  GpuReport report;
  report.built_with_cuda = cuda_version(CUDART_VERSION);
  int driver = 0;
  if (cudaDriverGetVersion(&driver) == cudaSuccess && driver > 0) report.driver_cuda = cuda_version(driver);
  if (const Nvml* nvml = Nvml::get()) report.driver = nvml->driver_version();
  report.libraries = libraries();
  report.problem = reason_for_no_device();
  if (!report.problem.empty()) return report;
  int n = 0;
  LOCKSTEP_CUDA_CHECK(cudaGetDeviceCount(&n));
  for (int a = 0; a < n; ++a) {
    report.gpus.push_back(describe(a));
    report.reaches.emplace_back();
    for (int b = 0; b < n; ++b) {
      int can = a == b ? 1 : 0;
      if (a != b) LOCKSTEP_CUDA_CHECK(cudaDeviceCanAccessPeer(&can, a, b));
      report.reaches.back().push_back(can != 0);
    }
  }
  return report;
}

}  // namespace lockstep::cuda

// The one place that names concrete backends.
#include "base/version.h"
#include "kernels/cpu/backend.h"
#include "kernels/cpu/base/health.h"
#ifdef LOCKSTEP_CUDA
#include "kernels/cuda/backend.h"
#include "kernels/cuda/backend_planning.h"
#include "kernels/cuda/base/nvml.h"
#endif
#include "lockstep/backend.h"
#include "lockstep/device_health.h"
#include "lockstep/error.h"
#include "lockstep/gpu_report.h"

namespace lockstep {

namespace cpu {
std::string product_library();  // kernels/cpu/base/product.h
}

std::string reason_for_no_gpu() {
#ifdef LOCKSTEP_CUDA
  return cuda::reason_for_no_device();
#else
  return "this build has no CUDA backend";
#endif
}

std::unique_ptr<Backend> make_backend(const BackendOptions& options) {
#ifdef LOCKSTEP_CUDA
  if (options.device == "cuda" || (options.device == "auto" && !cuda::is_without_device()))
    return cuda::make_backend(options);
#endif
  require(options.device != "cuda", ErrorCode::not_supported,
          "the configuration has device: cuda, but this build has no CUDA backend; use device=cpu or device=auto");
  return cpu::make_backend(options);
}

std::unique_ptr<Backend> make_planning_backend(const std::string& device) {
#ifdef LOCKSTEP_CUDA
  return cuda::make_planning_backend(device);
#else
  fail(ErrorCode::not_supported,
       "--device {}: this build has no CUDA backend (it was made where nvcc was not on PATH, or with CUDA=0)", device);
#endif
}

std::string known_devices() {
#ifdef LOCKSTEP_CUDA
  return cuda::known_devices();
#else
  return "none in this build, which has no CUDA backend";
#endif
}

bool GpuReport::is_usable() const {
  bool usable = problem.empty() && !gpus.empty();
  for (const Library& library : libraries) usable = usable && (!library.version.empty() || !library.is_needed);
  return usable;
}

GpuReport gpu_report() {
#ifdef LOCKSTEP_CUDA
  return cuda::gpu_report();
#else
  GpuReport report;
  report.problem = "this build has no CUDA backend: it was made where nvcc was not on PATH, or with CUDA=0";
  return report;
#endif
}

DeviceHealth device_health(const std::string& pci_bus) {
  if (pci_bus.empty()) return cpu::device_health();
#ifdef LOCKSTEP_CUDA
  if (const cuda::Nvml* nvml = cuda::Nvml::get()) return nvml->health(pci_bus);
#endif
  return {};
}

std::vector<std::string> backend_libraries() {
  std::vector<std::string> libraries{cpu::product_library()};
#ifdef LOCKSTEP_CUDA
  for (const std::string& library : cuda::library_versions()) libraries.push_back(library);
#endif
  return libraries;
}

}  // namespace lockstep

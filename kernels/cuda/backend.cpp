#include "kernels/cuda/backend.h"

#include <cuda_runtime_api.h>

#include <atomic>
#include <cstdint>

#include "kernels/cuda/backend_ops.h"
#include "kernels/cuda/base/check.h"
#include "kernels/cuda/base/cublaslt.h"
#include "kernels/cuda/base/cudnn.h"
#include "kernels/cuda/base/memory.h"
#include "kernels/cuda/base/nvml.h"
#include "kernels/cuda/base/nvtx.h"
#include "kernels/cuda/base/record_progress.h"
#include "kernels/cuda/base/stream.h"
#include "kernels/cuda/matmul_few_rows.h"
#include "lockstep/error.h"

namespace lockstep::cuda {
namespace {

constexpr int kLeastForBf16 = 80, kLeastForFp8 = 89;  // compute capability

int choose_device(const BackendOptions& options) {
  int n = 0;
  LOCKSTEP_CUDA_CHECK(cudaGetDeviceCount(&n));
  // Some launchers give each rank its own device, and make it the only visible one.
  if (n == 1) return 0;
  require(options.local_rank < n, ErrorCode::not_supported,
          "rank {} of this node has no GPU of its own: {} ranks were started here, and {} GPUs are visible. Start at "
          "most {} ranks on a node, or request more GPUs",
          options.local_rank, options.local_size, n, n);
  return options.local_rank;
}

CudaContext make_context(const BackendOptions& options) {
  const std::string reason = reason_for_no_device();
  require(reason.empty(), ErrorCode::not_supported, "no GPU can be used: {}; {}set device=cpu", reason,
          is_without_device() ? "" : "ask the administrators of this machine, or ");
  // Also checked for device: auto. A user with a GPU wants to use it, and should not have to conclude from the speed
  // that it is idle.
  for (const GpuReport::Library& library : libraries())
    require(!library.version.empty(), ErrorCode::not_supported,
            "this machine has a GPU, but a library that it needs is missing: {}. Install {}, put its folder on "
            "LD_LIBRARY_PATH, or set device=cpu",
            library.problem, library.name);
  CudaContext context{.device = choose_device(options)};
  // The order matters: the flags are set for the current device, which is 0 until another is selected.
  LOCKSTEP_CUDA_CHECK(cudaSetDevice(context.device));
  LOCKSTEP_CUDA_CHECK(cudaSetDeviceFlags(cudaDeviceScheduleBlockingSync));
  cudaDeviceProp properties{};
  LOCKSTEP_CUDA_CHECK(cudaGetDeviceProperties(&properties, context.device));
  context.multiprocessors = properties.multiProcessorCount;
  context.compute_capability = 10 * properties.major + properties.minor;
  context.shared_bytes = properties.sharedMemPerBlockOptin;
  context.memory_bytes = properties.totalGlobalMem;
  context.device_name = properties.name;
  return context;
}

class CudaBackend final : public OpsBackend {
 public:
  explicit CudaBackend(const BackendOptions& options)
      : OpsBackend(make_context(options), options.algorithms),
        records_steps_(options.records_steps),
        host_options_{.device = "cpu",
                      .threads = options.threads,
                      .local_rank = options.local_rank,
                      .local_size = options.local_size} {
    std::size_t free_bytes = 0, total_bytes = 0;
    LOCKSTEP_CUDA_CHECK(cudaMemGetInfo(&free_bytes, &total_bytes));
    info_.name = context().device_name;
    info_.memory_bytes = free_bytes;
    info_.libraries = library_versions();
    info_.uuid = uuid_of(context().device);
    info_.pci_bus = pci_bus_of(context().device);
    LOCKSTEP_CUDA_CHECK(cudaGetDeviceCount(&info_.n_visible));
  }

  std::string name() const override { return "cuda"; }
  DeviceInfo device() const override { return info_; }
  DeviceUsage usage() override {
    if (const Nvml* nvml = Nvml::get()) return nvml->usage(info_.pci_bus);
    std::size_t free_bytes = 0, total_bytes = 0;
    LOCKSTEP_CUDA_CHECK(cudaMemGetInfo(&free_bytes, &total_bytes));
    return {.memory_bytes = total_bytes - free_bytes, .utilisation = std::nullopt};
  }
  DeviceUsage usage_of(const std::string& pci_bus) override {
    const Nvml* nvml = Nvml::get();
    return nvml != nullptr ? nvml->usage(pci_bus) : DeviceUsage{};
  }

  std::unique_ptr<Memory> allocate(std::size_t size_bytes, const std::string& purpose) override {
    require(!frozen_, ErrorCode::internal, "{}: {} bytes were requested inside a step, where nothing may be allocated",
            purpose, size_bytes);
    return device_memory(size_bytes, purpose);
  }
  std::unique_ptr<Memory> allocate_host(std::size_t size_bytes, const std::string& purpose) override {
    return pinned_memory(size_bytes, purpose);
  }
  void freeze() override { frozen_ = true; }
  void unfreeze() override { frozen_ = false; }

  MemorySpace memory_space() const override { return MemorySpace::device; }
  void enter_thread() override { LOCKSTEP_CUDA_CHECK(cudaSetDevice(context().device)); }
  std::unique_ptr<Memory> pin_host(void* h_data, std::size_t size_bytes) override { return pin(h_data, size_bytes); }
  std::unique_ptr<Stream> make_stream(StreamPriority priority) override {
    return std::make_unique<CudaStream>(priority);
  }
  std::unique_ptr<Event> make_event() override { return std::make_unique<CudaEvent>(); }
  std::unique_ptr<CapturedGraph> make_captured_graph() override {
    if (!records_steps_) return std::make_unique<FewRowsGraph>(context(), /*together=*/false);
    return std::make_unique<CudaGraph>(std::make_unique<FewRows>(context(), /*together=*/true));
  }
  std::unique_ptr<Event> make_timing_event() override { return std::make_unique<CudaEvent>(EventUse::timing); }
  void run_on_host(const std::function<void()>& work, Stream& stream) override {
    const auto run = [](void* data) { (*static_cast<const std::function<void()>*>(data))(); };
    LOCKSTEP_CUDA_CHECK(
        cudaLaunchHostFunc(static_cast<cudaStream_t>(stream.native()), run, const_cast<std::function<void()>*>(&work)));
  }
  Backend& host() override {
    if (!host_) host_ = lockstep::make_backend(host_options_);
    return *host_;
  }
  void record_progress(StreamProgress* h_progress, std::uint64_t what, Stream& stream) override {
    cuda::record_progress(h_progress, what, stream);
  }
  /// Threads such as the writer of checkpoints also make copies, and in CUDA every new thread starts with device 0.
  void copy(void* target, const void* source, std::size_t size_bytes, Stream& stream) override {
    if (size_bytes == 0) return;
    LOCKSTEP_CUDA_CHECK(cudaSetDevice(context().device));
    LOCKSTEP_CUDA_CHECK(cudaMemcpyAsync(target, source, size_bytes, cudaMemcpyDefault, native(stream)));
  }
  void fill_zero(void* d_target, std::size_t size_bytes, Stream& stream) override {
    if (size_bytes > 0) LOCKSTEP_CUDA_CHECK(cudaMemsetAsync(d_target, 0, size_bytes, native(stream)));
  }

  std::string check_precision(Precision precision) const override {
    return cuda::check_precision(precision, info_.name, context().compute_capability);
  }

 private:
  DeviceInfo info_;
  bool records_steps_;
  BackendOptions host_options_;
  std::unique_ptr<Backend> host_;
  bool frozen_ = false;
};

}  // namespace

namespace {

cudaError_t status_of_devices() {
  int n = 0;
  const cudaError_t status = cudaGetDeviceCount(&n);
  (void)cudaGetLastError();
  return status == cudaSuccess && n == 0 ? cudaErrorNoDevice : status;
}

/// "1000 * major + 10 * minor" of what the driver supports; 0: there is none, or the toolkit's stub is in its place.
int driver_version() {
  int driver = 0;
  return cudaDriverGetVersion(&driver) == cudaSuccess ? driver : 0;
}

}  // namespace

bool is_without_device() {
  const cudaError_t status = status_of_devices();
  return status == cudaErrorNoDevice || (status != cudaSuccess && driver_version() == 0);
}

std::string reason_for_no_device() {
  const cudaError_t status = status_of_devices();
  if (status == cudaSuccess) return "";
  if (status == cudaErrorNoDevice) return "this machine has no NVIDIA GPU that this process may use";
  const int driver = driver_version();
  if (driver == 0) return "this machine has no NVIDIA driver";
  if (status == cudaErrorInsufficientDriver)
    return fmt::format("the NVIDIA driver supports CUDA {}.{}, and this program needs CUDA {}.{} or newer",
                       driver / 1000, driver % 1000 / 10, CUDART_VERSION / 1000, CUDART_VERSION % 1000 / 10);
  return fmt::format("this machine has an NVIDIA driver, but CUDA reports: {} ({})", cudaGetErrorString(status),
                     cudaGetErrorName(status));
}

std::string check_precision(Precision precision, const std::string& device, int capability) {
  require(precision != Precision::bf16 || capability >= kLeastForBf16, ErrorCode::not_supported,
          "{} (compute capability {}.{}) does not compute in bf16, which needs 8.0 or higher: set precision=fp16",
          device, capability / 10, capability % 10);
  require(precision != Precision::fp8 || capability >= kLeastForFp8, ErrorCode::not_supported,
          "{} (compute capability {}.{}) does not multiply in fp8, which needs 8.9 or higher: set precision={}", device,
          capability / 10, capability % 10, capability >= kLeastForBf16 ? "bf16" : "fp16");
  if (precision == Precision::tf32 && capability < kLeastForBf16) return "this device has no tf32: it computes in fp32";
  return "";
}

std::unique_ptr<Backend> make_backend(const BackendOptions& options) {
  attach_profiler();
  return std::make_unique<CudaBackend>(options);
}

std::vector<std::string> library_versions() {
  return {fmt::format("CUDA {}.{}", CUDART_VERSION / 1000, CUDART_VERSION % 1000 / 10),
          "cuDNN " + cudnn_version_compiled(), "cuBLASLt " + cublaslt_version_compiled()};
}

}  // namespace lockstep::cuda

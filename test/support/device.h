// A backend with a stream, and memory for one test: everything that is needed to call an op on any backend.
#pragma once

#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#include "lockstep/backend.h"
#include "test/support/cuda_on_host/backend.h"
#include "test/support/tensor.h"

namespace lockstep::test {

class Device {
 public:
  explicit Device(Backend& backend) : backend_(backend), stream_(backend.make_stream()) {}

  Backend& backend() { return backend_; }
  Stream& stream() { return *stream_; }

  template <typename T>
  T* upload(const std::vector<T>& values) {
    auto* target = static_cast<T*>(memory(values.size() * sizeof(T)));
    backend_.copy(target, values.data(), values.size() * sizeof(T), *stream_);
    return target;
  }

  /// An activation: `values` as fp32, bf16 or fp16, or the same number of elements filled with garbage.
  void* upload_as(DType dtype, const std::vector<float>& values) {
    if (dtype == DType::bf16) return upload(bf16_bits(values));
    if (dtype == DType::fp16) return upload(fp16_bits(values));
    return upload(values);
  }
  void* garbage_as(DType dtype, std::size_t n_elements) {
    return garbage<unsigned char>(n_elements * size_bytes(dtype));
  }
  std::vector<float> download_as(DType dtype, const void* source, std::size_t n_elements) {
    if (dtype == DType::bf16) return from_bf16_bits(download(static_cast<const std::uint16_t*>(source), n_elements));
    if (dtype == DType::fp16) return from_fp16_bits(download(static_cast<const std::uint16_t*>(source), n_elements));
    return download(static_cast<const float*>(source), n_elements);
  }

  /// For memory that an op must overwrite. All bytes are 0xff, which is NaN in every floating-point type.
  template <typename T>
  T* garbage(std::size_t n_elements) {
    void* target = memory(n_elements * sizeof(T));
    const std::vector<unsigned char> bytes(n_elements * sizeof(T), 0xff);
    backend_.copy(target, bytes.data(), bytes.size(), *stream_);
    return static_cast<T*>(target);
  }

  template <typename T>
  std::vector<T> download(const T* source, std::size_t n_elements) {
    std::vector<T> values(n_elements);
    backend_.copy(values.data(), source, n_elements * sizeof(T), *stream_);
    stream_->synchronize();
    return values;
  }

  /// Workspace and saved memory of an op, filled with garbage: neither may be read before it is written. The sizes are
  /// exact, so that the address sanitizer detects accesses beyond them.
  OpMemory op_memory(const OpMemoryRequirements& requirements) {
    const std::size_t workspace_bytes =
        std::max(requirements.forward_workspace_bytes, requirements.backward_workspace_bytes);
    return {workspace_bytes > 0 ? garbage<unsigned char>(workspace_bytes) : nullptr,
            requirements.saved_bytes > 0 ? garbage<unsigned char>(requirements.saved_bytes) : nullptr};
  }

 private:
  void* memory(std::size_t size_bytes) {
    memory_.push_back(backend_.allocate(size_bytes, "test"));
    return memory_.back()->data();
  }

  Backend& backend_;
  std::unique_ptr<Stream> stream_;
  std::vector<std::unique_ptr<Memory>> memory_;
};

/// The device for whole trainings: LOCKSTEP_TEST_DEVICE, or the cpu with one thread.
inline BackendOptions tested_device() {
  const char* device = std::getenv("LOCKSTEP_TEST_DEVICE");
  return {.device = device ? device : "cpu", .threads = 1};
}

/// The cuda backends compute only in nhwc, and the cpu backend does not compute in fp16.
inline bool computes_in(const Backend& backend, Layout layout) {
  return layout == Layout::nhwc || backend.name() == "cpu";
}
inline bool computes_in(const Backend& backend, DType dtype) { return dtype != DType::fp16 || backend.name() != "cpu"; }

/// Whether LOCKSTEP_TEST_DEVICE is `device`, or not set.
inline bool is_tested_device(const char* device) {
  const char* named = std::getenv("LOCKSTEP_TEST_DEVICE");
  return named == nullptr || std::strcmp(named, device) == 0;
}

#ifdef LOCKSTEP_CUDA
/// Tests that are meant for a GPU must not pass if it is missing.
inline bool tests_gpu() { return tested_device().device == "cuda" || (is_tested_device("cuda") && has_cuda_device()); }
#endif

/// The backends on which ops are tested: the cpu backend with 1 and with 2 threads; if there is a CUDA toolkit, the
/// CUDA backend's kernels on the host; if there is a GPU, the CUDA backend. If LOCKSTEP_TEST_DEVICE is cpu, host or
/// cuda, only the first, the second or the third.
struct NamedBackend {
  const char* name;
  std::unique_ptr<Backend> backend;
};
inline std::vector<NamedBackend>& tested_backends() {
  static std::vector<NamedBackend> tested = [] {
    std::vector<NamedBackend> backends;
    for (int threads : {1, 2}) {
      if (!is_tested_device("cpu")) break;
      BackendOptions options;
      options.device = "cpu";
      options.threads = threads;
      backends.push_back({threads == 1 ? "cpu, 1 thread" : "cpu, 2 threads", make_backend(options)});
    }
#ifdef LOCKSTEP_CUDA
    if (is_tested_device("host")) backends.push_back({"cuda kernels on the host", make_cuda_on_host_backend()});
    if (tests_gpu()) {
      BackendOptions options;
      options.device = "cuda";
      backends.push_back({"cuda", make_backend(options)});
    }
#endif
    return backends;
  }();
  return tested;
}

}  // namespace lockstep::test

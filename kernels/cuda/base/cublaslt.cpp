#include "kernels/cuda/base/cublaslt.h"

#include <map>

#include "lockstep/error.h"

namespace lockstep::cuda {

CublasLt::CublasLt()
    : library("cuBLASLt " + std::to_string(CUBLAS_VER_MAJOR), "libcublasLt.so." + std::to_string(CUBLAS_VER_MAJOR)) {}

const CublasLt& cublaslt() {
  static const CublasLt instance;
  return instance;
}

cublasLtHandle_t cublaslt_handle(int device) {
  static std::map<int, cublasLtHandle_t> handles;  // they exist until the process ends
  cublasLtHandle_t& handle = handles[device];
  if (!handle) {
    LOCKSTEP_CUDA_CHECK(cudaSetDevice(device));
    LOCKSTEP_CUDA_CHECK(cublaslt().create(&handle));
  }
  return handle;
}

std::string cublaslt_version() { return dotted(cublaslt().version()); }
std::string cublaslt_version_compiled() {
  return fmt::format("{}.{}.{}", CUBLAS_VER_MAJOR, CUBLAS_VER_MINOR, CUBLAS_VER_PATCH);
}

void check(cublasStatus_t status, const Place& place) {
  if (status != CUBLAS_STATUS_SUCCESS) throw_failure("cuBLASLt", status, cublaslt().status_text(status), place);
}
void report(cublasStatus_t status, const Place& place) noexcept {
  if (status != CUBLAS_STATUS_SUCCESS) report_failure("cuBLASLt", status, cublaslt().status_text(status), place);
}

}  // namespace lockstep::cuda

// Error checks for every library that the CUDA backend calls. A message has the library, its error code and text, the
// statement, file and line, and the device. LOCKSTEP_CUDA_CHECK throws; LOCKSTEP_CUDA_REPORT writes a line and returns
// (destructors).
#pragma once

#include <cuda_runtime_api.h>

namespace lockstep::cuda {

struct Place {
  const char* statement;
  const char* file;
  int line;
};

[[noreturn]] void throw_failure(const char* library, int code, const char* text, const Place& place);
void report_failure(const char* library, int code, const char* text, const Place& place) noexcept;

inline void check(cudaError_t status, const Place& place) {
  if (status != cudaSuccess) throw_failure("CUDA", status, cudaGetErrorString(status), place);
}
inline void report(cudaError_t status, const Place& place) noexcept {
  if (status != cudaSuccess) report_failure("CUDA", status, cudaGetErrorString(status), place);
}

}  // namespace lockstep::cuda

#define LOCKSTEP_CUDA_CHECK(statement) \
  ::lockstep::cuda::check((statement), ::lockstep::cuda::Place{#statement, __FILE__, __LINE__})
#define LOCKSTEP_CUDA_REPORT(statement) \
  ::lockstep::cuda::report((statement), ::lockstep::cuda::Place{#statement, __FILE__, __LINE__})

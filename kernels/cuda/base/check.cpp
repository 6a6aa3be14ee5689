#include "kernels/cuda/base/check.h"

#include <cstdio>

#include "lockstep/error.h"

namespace lockstep::cuda {
namespace {

std::string text_of(const char* library, int code, const char* text, const Place& place) {
  int device = -1;
  cudaGetDevice(&device);
  return fmt::format("{} reported {} ({}) for {} at {}:{}, device {}", library, code, text, place.statement, place.file,
                     place.line, device);
}

}  // namespace

void throw_failure(const char* library, int code, const char* text, const Place& place) {
  const bool is_memory = library == std::string_view("CUDA") && code == cudaErrorMemoryAllocation;
  throw Error(is_memory ? ErrorCode::out_of_memory : ErrorCode::library, text_of(library, code, text, place));
}

void report_failure(const char* library, int code, const char* text, const Place& place) noexcept {
  try {
    std::fprintf(stderr, "%s\n", text_of(library, code, text, place).c_str());
  } catch (...) {
    std::fputs("a CUDA library reported an error, and there is no memory left to describe it\n", stderr);
  }
}

}  // namespace lockstep::cuda

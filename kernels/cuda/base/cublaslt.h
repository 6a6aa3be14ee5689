// cuBLASLt for the ops that use it: a table of its functions, loaded when first used (the program starts without it), a
// handle for each device, and its part of check.h.
#pragma once

#include <cublasLt.h>

#include <string>

#include "kernels/cuda/base/check.h"
#include "kernels/cuda/base/library.h"

namespace lockstep::cuda {

struct CublasLt {
  CublasLt();

#define LOCKSTEP_CUBLASLT_FUNCTION(member, symbol) \
  decltype(&symbol) member = library.function<decltype(symbol)>(#symbol)
  Library library;
  LOCKSTEP_CUBLASLT_FUNCTION(version, cublasLtGetVersion);
  LOCKSTEP_CUBLASLT_FUNCTION(status_text, cublasLtGetStatusString);
  LOCKSTEP_CUBLASLT_FUNCTION(create, cublasLtCreate);
  LOCKSTEP_CUBLASLT_FUNCTION(create_product, cublasLtMatmulDescCreate);
  LOCKSTEP_CUBLASLT_FUNCTION(destroy_product, cublasLtMatmulDescDestroy);
  LOCKSTEP_CUBLASLT_FUNCTION(set_product, cublasLtMatmulDescSetAttribute);
  LOCKSTEP_CUBLASLT_FUNCTION(create_layout, cublasLtMatrixLayoutCreate);
  LOCKSTEP_CUBLASLT_FUNCTION(destroy_layout, cublasLtMatrixLayoutDestroy);
  LOCKSTEP_CUBLASLT_FUNCTION(create_preference, cublasLtMatmulPreferenceCreate);
  LOCKSTEP_CUBLASLT_FUNCTION(destroy_preference, cublasLtMatmulPreferenceDestroy);
  LOCKSTEP_CUBLASLT_FUNCTION(set_preference, cublasLtMatmulPreferenceSetAttribute);
  LOCKSTEP_CUBLASLT_FUNCTION(heuristics, cublasLtMatmulAlgoGetHeuristic);
  LOCKSTEP_CUBLASLT_FUNCTION(get_algorithm, cublasLtMatmulAlgoConfigGetAttribute);
  LOCKSTEP_CUBLASLT_FUNCTION(multiply, cublasLtMatmul);
#undef LOCKSTEP_CUBLASLT_FUNCTION
};

/// Loads the library when first called.
const CublasLt& cublaslt();
/// The handle of the current device, created on first use.
cublasLtHandle_t cublaslt_handle(int device);

/// "13.0.2": the version of the library. Loads the library.
std::string cublaslt_version();
/// The version of the headers that this program was compiled with. Loads nothing.
std::string cublaslt_version_compiled();

void check(cublasStatus_t status, const Place& place);
void report(cublasStatus_t status, const Place& place) noexcept;

}  // namespace lockstep::cuda

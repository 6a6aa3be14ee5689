// cuDNN for the ops that use it: loaded when first used (the program starts without it), a handle for each device, and
// its part of check.h.
#pragma once

#if !__has_include(<cudnn.h>)
#error \
    "cuDNN 9's headers are missing: give CUDNN_HOME=FOLDER (with include and lib), or build without CUDA: make CUDA=0"
#endif
#include <cudnn.h>

#include <string>

#include "kernels/cuda/base/check.h"

namespace lockstep::cuda {

/// "9.19.0": the version of the library. Loads the library.
std::string cudnn_version();
/// "9.19.0": the version of the headers that this program was compiled with. Loads nothing.
std::string cudnn_version_compiled();

/// "libcudart.so.13": the shared library of the CUDA runtime, which cudnn-frontend needs. The environment variable
/// CUDNN_FRONTEND_CUDART_LIB_NAME names another one.
std::string cuda_runtime_file();

/// The library's own handle, for code that looks up its functions itself.
void* cudnn_library();

/// The handle of the current device, created on first use, without the stream of an earlier run: for planning. Used by
/// one thread at a time.
cudnnHandle_t cudnn_handle(int device);
/// Work that is issued to the handle from now on runs on `stream`.
void set_stream(cudnnHandle_t handle, cudaStream_t stream);

void check(cudnnStatus_t status, const Place& place);

}  // namespace lockstep::cuda

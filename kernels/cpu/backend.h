// The CPU backend: memory of the process, work that runs immediately in the caller's thread (and OpenMP's), oneDNN for
// convolution and matmul, and our own vectorised code for the rest.
#pragma once

#include <memory>

#include "kernels/cpu/base/context.h"
#include "lockstep/backend.h"

namespace lockstep::cpu {

std::unique_ptr<Backend> make_backend(const BackendOptions& options, const CpuOptions& cpu_options = {});

}  // namespace lockstep::cpu

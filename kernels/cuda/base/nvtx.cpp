#include "kernels/cuda/base/nvtx.h"

#include <nvtx3/nvToolsExt.h>

#include "lockstep/trace.h"

namespace lockstep::cuda {

bool attach_profiler() {
  // NVTX is header-only: its first call loads the library that the profiler names in the environment, and tells us if
  // there is none.
  if (nvtxRangePushA("lockstep") == NVTX_NO_PUSH_POP_TRACKING) return false;
  nvtxRangePop();
  trace::attach({.push = [](const char* name) { nvtxRangePushA(name); }, .pop = [] { nvtxRangePop(); }});
  return true;
}

}  // namespace lockstep::cuda

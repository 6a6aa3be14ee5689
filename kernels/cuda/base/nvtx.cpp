#include "kernels/cuda/base/nvtx.h"

#include <nvtx3/nvToolsExt.h>

#include "lockstep/trace.h"

namespace lockstep::cuda {

bool attach_profiler() {
  // NVTX is headers alone: its first call loads what the profiler named in the environment, and says so when nobody
  // did.
  if (nvtxRangePushA("lockstep") == NVTX_NO_PUSH_POP_TRACKING) return false;
  nvtxRangePop();
  trace::attach({.push = [](const char* name) { nvtxRangePushA(name); }, .pop = [] { nvtxRangePop(); }});
  return true;
}

}  // namespace lockstep::cuda

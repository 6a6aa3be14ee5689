#include "test/support/cuda_on_host/backend.h"

#ifdef LOCKSTEP_CUDA
#include "kernels/cuda/backend.h"

namespace lockstep::test {

bool has_cuda_device() { return cuda::reason_for_no_device().empty(); }

}  // namespace lockstep::test
#endif

#include "kernels/cuda/backend_ops.h"

#include "lockstep/op_list.h"

namespace lockstep::cuda {

LOCKSTEP_DEFINE_MAKE_OP(CudaContext)

}  // namespace lockstep::cuda

#include "kernels/cuda/ops.h"

#include "lockstep/op_list.h"

namespace lockstep::cuda {

#define LOCKSTEP_DECLARE(Description, make) \
  std::unique_ptr<Description::Op> make(const Description&, const CudaContext&);
LOCKSTEP_OPS(LOCKSTEP_DECLARE)
#undef LOCKSTEP_DECLARE

std::unique_ptr<Op> make_op(const OpRequest& request, const CudaContext& context) {
#define LOCKSTEP_ROW(Description, make) op_row<make>(),
  static constexpr OpRow<CudaContext> kOps[] = {LOCKSTEP_OPS(LOCKSTEP_ROW)};
#undef LOCKSTEP_ROW
  return lockstep::make_op<CudaContext>(kOps, request, context, "cuda");
}

}  // namespace lockstep::cuda

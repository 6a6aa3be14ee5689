#include "kernels/cpu/ops.h"

#include "lockstep/op_list.h"

namespace lockstep::cpu {

#define LOCKSTEP_DECLARE(Description, make) \
  std::unique_ptr<Description::Op> make(const Description&, const CpuContext&);
LOCKSTEP_OPS(LOCKSTEP_DECLARE)
#undef LOCKSTEP_DECLARE

std::unique_ptr<Op> make_op(const OpRequest& request, const CpuContext& context) {
#define LOCKSTEP_ROW(Description, make) op_row<make>(),
  static constexpr OpRow<CpuContext> kOps[] = {LOCKSTEP_OPS(LOCKSTEP_ROW)};
#undef LOCKSTEP_ROW
  return lockstep::make_op<CpuContext>(kOps, request, context, "cpu");
}

}  // namespace lockstep::cpu

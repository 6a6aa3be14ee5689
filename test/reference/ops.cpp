#include "test/reference/ops.h"

#include "lockstep/op_list.h"
#include "test/reference/attention.h"
#include "test/reference/cached_attention.h"
#include "test/reference/embedding.h"
#include "test/reference/linear_cross_entropy.h"
#include "test/reference/lora.h"
#include "test/reference/nf4_matmul.h"
#include "test/reference/rms_norm.h"
#include "test/reference/rotary.h"
#include "test/reference/swiglu.h"

namespace lockstep::reference {

#define LOCKSTEP_DECLARE(Description, make) std::unique_ptr<Description::Op> make(const Description&, const Context&);
LOCKSTEP_OPS(LOCKSTEP_DECLARE)
#undef LOCKSTEP_DECLARE

std::unique_ptr<Op> make_op(const OpRequest& request) {
#define LOCKSTEP_ROW(Description, make) op_row<make>(),
  static constexpr OpRow<Context> kOps[] = {LOCKSTEP_OPS(LOCKSTEP_ROW)};
#undef LOCKSTEP_ROW
  return lockstep::make_op<Context>(kOps, request, Context(), "reference");
}

}  // namespace lockstep::reference

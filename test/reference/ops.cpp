#include "test/reference/ops.h"

#include "lockstep/op_list.h"
#include "test/reference/attention.h"
#include "test/reference/cached_attention.h"
#include "test/reference/embedding.h"
#include "test/reference/glu.h"
#include "test/reference/linear_cross_entropy.h"
#include "test/reference/lora.h"
#include "test/reference/nf4_matmul.h"
#include "test/reference/rms_norm.h"
#include "test/reference/rotary.h"
#include "test/reference/sample.h"

namespace lockstep::reference {

LOCKSTEP_DEFINE_MAKE_OP(Context)

}  // namespace lockstep::reference

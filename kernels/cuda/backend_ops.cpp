#include "kernels/cuda/backend_ops.h"

#include <fmt/format.h>

#include "lockstep/op_list.h"

namespace lockstep::cuda {

LOCKSTEP_DEFINE_MAKE_OP(CudaContext)

AutomaticPrecision OpsBackend::automatic_precision(Workload workload) const {
  constexpr int kLeastForFp16 = 70, kLeastForBf16 = 80;  // whose tensor cores multiply it
  const int capability = context_.compute_capability;
  const std::string reason = fmt::format("compute capability {}.{}", capability / 10, capability % 10);
  if (capability < kLeastForFp16) return {Precision::fp32, reason};
  // Only in fp16 does cuDNN fuse norms into convolutions. bf16 has the range of fp32 and needs no loss scaling.
  const bool uses_bf16 = workload == Workload::matrix_products && capability >= kLeastForBf16;
  return {uses_bf16 ? Precision::bf16 : Precision::fp16, reason};
}

}  // namespace lockstep::cuda

// y = x * weight^T + bias for a few rows of x, as in generating text: the time is that of reading the weight. Each
// element of y is one sum over the input features in ascending order, a vector's lanes at a time, whatever the number
// of rows and of threads, so a row has the same bits in any batch.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/base/context.h"
#include "lockstep/ops/matmul.h"

namespace lockstep::cpu {

/// Beyond, oneDNN's kernels are faster: it reads its weights once for many rows, and computes in bf16.
inline constexpr std::int64_t kMostRows = 64;

/// Whether multiply_rows() computes this op.
bool is_for_rows(const MatmulDescription& d);
/// Of the workspace: x in fp32.
std::size_t rows_workspace_bytes(const MatmulDescription& d);
/// Without the activation. The weight is (out, in), row-major.
void multiply_rows(const MatmulDescription& d, const Matmul::Forward& args, void* workspace, const CpuContext& context);

}  // namespace lockstep::cpu

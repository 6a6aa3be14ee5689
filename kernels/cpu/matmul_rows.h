// y = x * weight^T + bias for a few rows of x, as in text generation. The time is that of reading the weight. Each
// element of y is one sum over the input features in ascending order, a vector's lanes at a time, whatever the number
// of rows and of threads, so a row has the same bits in any batch.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/base/context.h"
#include "lockstep/ops/matmul.h"

namespace lockstep::cpu {

/// For more rows, oneDNN's kernels are faster: they read the weights once for many rows, and compute in bf16.
inline constexpr std::int64_t kMostRows = 64;

/// Whether multiply_rows() computes this op.
bool is_for_rows(const MatmulDescription& d);
/// The size of the workspace, which holds x in fp32.
std::size_t rows_workspace_bytes(const MatmulDescription& d);
/// Computes y without the activation. The weight is (out, in), row-major.
void multiply_rows(const MatmulDescription& d, const Matmul::Forward& args, void* workspace, const CpuContext& context);

}  // namespace lockstep::cpu

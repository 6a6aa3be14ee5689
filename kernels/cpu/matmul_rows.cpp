#include "kernels/cpu/matmul_rows.h"

#include <cstring>
#include <utility>

#include "kernels/cpu/base/bf16.h"
#include "kernels/cpu/base/parallel.h"
#include "kernels/cpu/base/simd.h"
#include "kernels/cpu/base/widen.h"

namespace lockstep::cpu {

/// E is the type of weight and bias, Y that of y.
template <typename E, typename Y>
struct RowsTask {
  std::int64_t rows = 0, in_features = 0, out_features = 0;
  const float* x = nullptr;
  const E* weight = nullptr;
  const E* bias = nullptr;  // null if there is no bias
  Y* y = nullptr;
};

}  // namespace lockstep::cpu

#define LOCKSTEP_KERNELS "kernels/cpu/matmul_rows_kernels.h"
#include "kernels/cpu/base/each_isa.h"

namespace lockstep::cpu {
namespace {

template <typename E, typename Y>
void multiply(const MatmulDescription& d, const Matmul::Forward& args, const float* x, const CpuContext& context) {
  using Task = RowsTask<E, Y>;
  const Task task{.rows = d.rows,
                  .in_features = d.in_features,
                  .out_features = d.out_features,
                  .x = x,
                  .weight = static_cast<const E*>(args.weight),
                  .bias = static_cast<const E*>(args.bias),
                  .y = static_cast<Y*>(args.y)};
  const int parts = part_count(context, d.in_features * d.out_features * static_cast<std::int64_t>(sizeof(E)));
  run_parts(parts, [&](int part) {
    LOCKSTEP_DISPATCH(multiply_rows<Task>)(task, part_of(d.out_features, part, parts));
  });
}

}  // namespace

bool is_for_rows(const MatmulDescription& d) { return d.inference && d.rows <= kMostRows; }

std::size_t rows_workspace_bytes(const MatmulDescription& d) {
  return d.dtype == DType::fp32 ? 0 : static_cast<std::size_t>(d.rows * d.in_features) * sizeof(float);
}

void multiply_rows(const MatmulDescription& d, const Matmul::Forward& args, void* workspace,
                   const CpuContext& context) {
  if (d.dtype == DType::fp32) {
    multiply<float, float>(d, args, static_cast<const float*>(args.x), context);
    return;
  }
  auto* const x = static_cast<float*>(workspace);
  widen(static_cast<const Bf16*>(args.x), x, d.rows * d.in_features, context);
  if (d.fp32_output)
    multiply<Bf16, float>(d, args, x, context);
  else
    multiply<Bf16, Bf16>(d, args, x, context);
}

}  // namespace lockstep::cpu

// Gated linear units (lockstep/ops/glu.h): one pass over memory in fp32 registers, forward and backward. Rows are
// divided among threads.
#include <memory>

#include "kernels/cpu/base/parallel.h"
#include "kernels/cpu/base/simd.h"
#include "lockstep/ops/glu.h"

#define LOCKSTEP_KERNELS "kernels/cpu/glu_kernels.h"
#include "kernels/cpu/base/each_isa.h"

namespace lockstep::cpu {
namespace {

class CpuGlu final : public CpuOp<GluDescription> {
 public:
  CpuGlu(const GluDescription& d, const CpuContext& context)
      : PlannedOp(d, context),
        parts_(part_count(context, 3 * d.rows * d.width * static_cast<std::int64_t>(size_bytes(d.dtype)))) {}

  std::string describe() const override { return "own kernel, one pass forward and one backward"; }

  void run_forward(const Forward& args, const OpMemory&, Stream&) override { run(args.x, nullptr, args.y, false); }
  void run_backward(const Backward& args, const OpMemory&, Stream&) override {
    if (args.dx_mode == GradientMode::skip) return;
    run(args.x, args.dy, args.dx, args.dx_mode == GradientMode::accumulate);
  }

 private:
  void run(const void* x, const void* dy, void* out, bool accumulate) const {
    with_elements(d_.dtype, [&]<typename E>(E) {
      run_ranges(parts_, d_.rows, [&](Range rows) {
        LOCKSTEP_DISPATCH(glu_pass<E>)
        (d_, static_cast<const E*>(x), static_cast<const E*>(dy), static_cast<E*>(out), accumulate, rows);
      });
    });
  }

  int parts_;
};

}  // namespace

std::unique_ptr<Glu> make_glu(const GluDescription& d, const CpuContext& context) {
  require_float_or_bf16(d.dtype, "a gated linear unit");
  return std::make_unique<CpuGlu>(d, context);
}

}  // namespace lockstep::cpu

// y = a + b and its gradients (lockstep/ops/add.h): each tensor is read or written once. Elements are divided among
// threads.
#include <cstring>
#include <memory>

#include "kernels/cpu/base/bf16.h"
#include "kernels/cpu/base/parallel.h"
#include "kernels/cpu/base/widen.h"
#include "lockstep/ops/add.h"

namespace lockstep::cpu {
namespace {

class CpuAdd final : public CpuOp<AddDescription> {
 public:
  using PlannedOp::PlannedOp;

  std::string describe() const override { return "own kernel, one pass"; }

  void run_forward(const Forward& args, const OpMemory&, Stream&) override {
    add(d_.dtype, args.a, args.b, args.y, d_.n_elements, context_);
  }

  void run_backward(const Backward& args, const OpMemory&, Stream&) override {
    pass_on(args.dy, args.da, args.da_mode);
    pass_on(args.dy, args.db, args.db_mode);
  }

 private:
  void pass_on(const void* dy, void* gradient, GradientMode mode) const {
    if (mode == GradientMode::accumulate) return add(d_.dtype, gradient, dy, gradient, d_.n_elements, context_);
    if (mode == GradientMode::skip || gradient == dy) return;
    const auto n_bytes = d_.n_elements * static_cast<std::int64_t>(size_bytes(d_.dtype));
    run_ranges(part_count(context_, 2 * n_bytes), n_bytes, [&](Range range) {
      std::memcpy(static_cast<std::byte*>(gradient) + range.begin, static_cast<const std::byte*>(dy) + range.begin,
                  static_cast<std::size_t>(range.end - range.begin));
    });
  }
};

}  // namespace

std::unique_ptr<Add> make_add(const AddDescription& d, const CpuContext& context) {
  require(d.n_elements > 0, ErrorCode::op_description, "a sum of two tensors of {} elements", d.n_elements);
  require_float_or_bf16(d.dtype, "a sum of two tensors");
  return std::make_unique<CpuAdd>(d, context);
}

}  // namespace lockstep::cpu

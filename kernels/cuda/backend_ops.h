// The ops of lockstep/op_list.h, and the base of all backends that use them: the one for a device, the one that only
// plans, and the one with which tests run the ops on the host.
#pragma once

#include <memory>
#include <utility>

#include "kernels/cuda/base/context.h"
#include "lockstep/backend.h"

namespace lockstep::cuda {

std::unique_ptr<Op> make_op(const OpRequest& request, const CudaContext& context);

class OpsBackend : public Backend {
 public:
  OpsBackend(const CudaContext& context, std::shared_ptr<Algorithms> algorithms)
      : context_(context), algorithms_(std::move(algorithms)) {
    context_.algorithms = algorithms_.get();
  }

  /// cuDNN's fast kernels need nhwc.
  Layout activation_layout(const Shape&, DType) const override { return Layout::nhwc; }

  AutomaticPrecision automatic_precision(Workload workload) const override;

  void fix_algorithms(bool are_fixed) override { context_.algorithms = are_fixed ? nullptr : algorithms_.get(); }
  std::unique_ptr<Op> make_op(const OpRequest& request) override { return cuda::make_op(request, context_); }

 protected:
  const CudaContext& context() const { return context_; }

 private:
  CudaContext context_;
  std::shared_ptr<Algorithms> algorithms_;
};

}  // namespace lockstep::cuda

// y (M, out) = f(z), z = x (M, in) * weight^T (in, out) + bias (out), row-major, the weight as in files. y is
// overwritten; with gelu z is kept for backward:
//   dz = f'(z) dy,  dx = dz * weight,  dweight = dz^T * x,  dbias = sum over rows of dz; each overwritten, added to, or
//   skipped
// f is an epilogue of cuBLASLt where it has a kernel for that, and a separate pass otherwise.
// All tensors have one type, weight and bias included. Products are summed in fp32, and dweight and dbias are written
// as fp32 directly, whatever that type is, or in that type.
#include <algorithm>
#include <memory>

#include "kernels/cuda/activation.h"
#include "kernels/cuda/base/context.h"
#include "kernels/cuda/base/conversions.h"
#include "kernels/cuda/base/row_major_layout.h"
#include "kernels/cuda/matmul_bare.h"
#include "kernels/cuda/matmul_few_rows.h"
#include "lockstep/error.h"
#include "lockstep/ops/matmul.h"
#include "lockstep/workspace.h"

namespace lockstep::cuda {
namespace {

std::string text(const MatmulDescription& d) {
  return fmt::format("matmul ({}, {}) -> {}{}, {}", d.rows, d.in_features, d.out_features, d.bias ? " with bias" : "",
                     d.tf32 ? "tf32" : name(d.dtype));
}

class CudaMatmul final : public CudaOp<MatmulDescription> {
 public:
  CudaMatmul(const MatmulDescription& description, const CudaContext& context);

  OpMemoryRequirements memory_requirements() const override { return requirements_; }
  std::string describe() const override;
  std::shared_ptr<const ParameterLayout> weight_layout() const override { return layout_; }
  void run_forward(const Forward& args, const OpMemory& memory, Stream& stream) override;
  void run_backward(const Backward& args, const OpMemory& memory, Stream& stream) override;

 private:
  bool has_activation() const { return d_.activation != ActivationFunction::none; }
  bool keeps_z() const { return has_activation() && d_.activation != ActivationFunction::relu && !d_.inference; }
  ColumnSums bias_sums() const { return {d_.rows, d_.out_features, d_.dtype}; }
  ActivationPass activation_pass(const void* x, const void* dy, void* out) const {
    return {d_.activation, d_.dtype, d_.rows * d_.out_features, x, dy, out};
  }

  std::shared_ptr<const ParameterLayout> layout_;
  std::unique_ptr<PlannedProduct> forward_, data_gradient_, weight_gradient_;  // null if not computed
  OpMemoryRequirements requirements_;
  struct Offsets {
    std::size_t dz = 0, backward = 0;
  } at_;
};

CudaMatmul::CudaMatmul(const MatmulDescription& description, const CudaContext& context)
    : PlannedOp(description, context) {
  const MatmulDescription& d = d_;
  require(d.dtype == DType::fp32 || d.dtype == DType::fp16 || d.dtype == DType::bf16, ErrorCode::not_supported,
          "{}: the cuda backend computes in fp32, fp16 or bf16", text(d));
  layout_ = row_major_layout(d.weight_layout, d.out_features * d.in_features, text(d));
  const auto plan = [&](const ProductDescription& product) { return plan_product(d, product, context); };
  forward_ = plan({.rows = d.rows,
                   .columns = d.out_features,
                   .inner = d.in_features,
                   .b_is_transposed = true,
                   .d_dtype = d.fp32_output ? DType::fp32 : d.dtype,
                   .bias = d.bias,
                   .activation = d.activation,
                   .keeps_z = keeps_z()});
  const auto y_bytes = static_cast<std::size_t>(d.rows * d.out_features) * size_bytes(d.dtype);
  if (keeps_z()) requirements_.saved_bytes = y_bytes;
  requirements_.forward_workspace_bytes = forward_->workspace_bytes();
  if (d.inference) return;
  weight_gradient_ = plan({.rows = d.out_features,
                           .columns = d.in_features,
                           .inner = d.rows,
                           .a_is_transposed = true,
                           .d_dtype = d.gradient_dtype});
  if (d.input_gradient)
    data_gradient_ = plan({.rows = d.rows, .columns = d.in_features, .inner = d.out_features, .d_dtype = d.dtype});
  WorkspacePlan backward;
  if (has_activation()) at_.dz = backward.take(y_bytes);
  at_.backward = backward.take(
      std::max({weight_gradient_->workspace_bytes(), data_gradient_ ? data_gradient_->workspace_bytes() : 0,
                d.bias ? sum_columns_workspace_bytes(bias_sums()) : 0}));
  requirements_.backward_workspace_bytes = backward.size_bytes();
}

std::string CudaMatmul::describe() const {
  std::string out =
      fmt::format("{}, weights {}: cuBLASLt, forward {}", text(d_), layout_->describe(), forward_->algorithm());
  if (data_gradient_) out += "; data gradient " + data_gradient_->algorithm();
  if (weight_gradient_) out += "; weight gradient " + weight_gradient_->algorithm();
  if (d_.bias) out += "; bias fused";
  if (has_activation())
    out += fmt::format("; {} {}", name(d_.activation), forward_->activates() ? "fused" : "in a pass");
  return out;
}

void CudaMatmul::run_forward(const Forward& args, const OpMemory& memory, Stream& stream) {
  if (FewRows::multiply(d_, args)) return;
  const bool is_pass = has_activation() && !forward_->activates();
  void* const z = keeps_z() ? memory.saved : args.y;
  forward_->run({.a = args.x, .b = args.weight, .bias = args.bias, .d = is_pass ? z : args.y, .z = z}, memory.workspace,
                stream);
  if (is_pass) run_activation(activation_pass(z, nullptr, args.y), context_, stream);
}

void CudaMatmul::run_backward(const Backward& args, const OpMemory& memory, Stream& stream) {
  require(!d_.inference, ErrorCode::internal, "{} was planned for inference, and backward was called", text(d_));
  const void* dz = args.dy;
  if (has_activation()) {
    void* const made = at(memory.workspace, at_.dz);
    run_activation(activation_pass(keeps_z() ? memory.saved : args.y, args.dy, made), context_, stream);
    dz = made;
  }
  void* const workspace = at(memory.workspace, at_.backward);
  if (args.parameter_mode != GradientMode::skip) {
    const bool accumulate = args.parameter_mode == GradientMode::accumulate;
    weight_gradient_->run({.a = dz, .b = args.x, .d = args.dweight, .accumulate = accumulate}, workspace, stream);
    if (d_.bias) sum_columns(bias_sums(), dz, {args.dbias, d_.gradient_dtype}, accumulate, workspace, stream);
  }
  if (data_gradient_ && args.dx_mode != GradientMode::skip)
    data_gradient_->run(
        {.a = dz, .b = args.weight, .d = args.dx, .accumulate = args.dx_mode == GradientMode::accumulate}, workspace,
        stream);
}

}  // namespace

std::string text(const ProductDescription& product) {
  return fmt::format("{}x{}x{}{}{}{}, {} to {}{}", product.rows, product.columns, product.inner,
                     product.a_is_transposed ? ", a^T" : "", product.b_is_transposed ? ", b^T" : "",
                     product.d_stride > 0 ? fmt::format(", rows of {}", product.d_stride) : "",
                     product.a_is_e5m2 ? "e5m2 by e4m3"
                     : product.tf32    ? "tf32"
                                       : name(product.dtype),
                     name(product.d_dtype), product.bias ? ", bias" : "") +
         (product.activation == ActivationFunction::none
              ? ""
              : fmt::format(", {}{}", name(product.activation), product.keeps_z ? " and z" : ""));
}

std::unique_ptr<Matmul> make_matmul(const MatmulDescription& description, const CudaContext& context) {
  if (description.fp8) return make_matmul_in_fp8(description, context);
  return std::make_unique<CudaMatmul>(description, context);
}

}  // namespace lockstep::cuda

// y[n,h,w,k] = sum_{r,s,c} z[n, h*stride+r-pad, w*stride+s-pad, c] w[k,c,r,s]: a bare convolution (conv2d_bare.h), with
// passes over memory before it (z of a pending normalisation) and after it (y's statistics).
//
//   forward   z: into normalization.z (`store`), `saved`, or the workspace; y: overwritten; statistics from y
//   backward  dweight from z and dy, then the data gradient, then normalize_backward makes dz and sums of it
//   kept      z in `saved` when nobody stores it, unless CpuOptions::recompute_normalized
#include <algorithm>
#include <memory>

#include "kernels/cpu/base/widen.h"
#include "kernels/cpu/conv2d_bare.h"
#include "kernels/cpu/normalization.h"
#include "lockstep/ops/conv2d.h"
#include "lockstep/workspace.h"

namespace lockstep::cpu {
namespace {

enum class NormalizedInput : std::uint8_t {
  none,       // x itself is convolved
  stored,     // z is in the caller's memory
  saved,      // z is kept from forward to backward
  temporary,  // z is in the workspace, and recomputed in backward
};

NormalizedInput where_z_lies(const Conv2dDescription& d, const CpuOptions& options) {
  if (!d.normalization) return NormalizedInput::none;
  if (d.normalization->store) return NormalizedInput::stored;
  return d.inference || options.recompute_normalized ? NormalizedInput::temporary : NormalizedInput::saved;
}

ActivationShape activation(const Shape& s, Layout layout, DType dtype) {
  return {s[0], s[1] * s[2], s[3], layout, dtype};
}

class CpuConv2d final : public CpuOp<Conv2dDescription> {
 public:
  CpuConv2d(const Conv2dDescription& description, const CpuContext& context);

  OpMemoryRequirements memory_requirements() const override { return requirements_; }
  std::string describe() const override;
  std::shared_ptr<const ParameterLayout> weight_layout() const override { return forward_->weight_layout(); }
  void run_forward(const Forward& args, const OpMemory& memory, Stream& stream) override;
  void run_backward(const Backward& args, const OpMemory& memory, Stream& stream) override;

 private:
  void plan_forward();
  void plan_backward();
  /// The tensor that is convolved. `z_offset` is its position in this call's workspace, if it is stored there.
  const void* input(const void* x, const NormalizationForward& normalization, const OpMemory& memory,
                    std::size_t z_offset, bool compute);
  void input_gradient(const Backward& args, const void* z, void* workspace);

  std::unique_ptr<BareConvolution> forward_, data_gradient_, weight_gradient_;  // null if not computed
  NormalizedInput normalized_;
  ActivationShape x_shape_, y_shape_;
  std::size_t x_bytes_;
  OpMemoryRequirements requirements_;

  struct ForwardOffsets {
    std::size_t z = 0, bare = 0, sums = 0;
  } forward_at_;
  struct BackwardOffsets {
    std::size_t z = 0, dx = 0, bare = 0, normalize = 0;
  } backward_at_;
};

CpuConv2d::CpuConv2d(const Conv2dDescription& description, const CpuContext& context)
    : PlannedOp(description, context),
      forward_(make_bare_convolution(description, Direction::forward, context, context.algorithms)),
      normalized_(where_z_lies(description, context.options)),
      x_shape_(activation(description.x, description.x_layout, description.dtype)),
      y_shape_(activation(description.y(), description.y_layout, description.dtype)),
      x_bytes_(static_cast<std::size_t>(description.x.n_elements()) * size_bytes(description.dtype)) {
  plan_forward();
  if (!d_.inference) {
    Conv2dDescription backward = description;
    backward.weight_layout = forward_->weight_layout();
    weight_gradient_ = make_bare_convolution(backward, Direction::weight_gradient, context, context.algorithms);
    if (description.input_gradient)
      data_gradient_ = make_bare_convolution(backward, Direction::data_gradient, context, context.algorithms);
    plan_backward();
  }
  if (normalized_ == NormalizedInput::saved) requirements_.saved_bytes = x_bytes_;
}

void CpuConv2d::plan_forward() {
  WorkspacePlan workspace;
  if (normalized_ == NormalizedInput::temporary) forward_at_.z = workspace.take(x_bytes_);
  const std::size_t mark = workspace.mark();
  forward_at_.bare = workspace.take(forward_->workspace_bytes());
  workspace.rewind(mark);
  if (d_.statistics) forward_at_.sums = workspace.take(channel_sums_workspace_bytes(y_shape_, context_));
  requirements_.forward_workspace_bytes = workspace.size_bytes();
}

void CpuConv2d::plan_backward() {
  WorkspacePlan workspace;
  if (normalized_ == NormalizedInput::temporary) backward_at_.z = workspace.take(x_bytes_);
  if (d_.input_gradient) backward_at_.dx = workspace.take(x_bytes_);
  const std::size_t mark = workspace.mark();
  backward_at_.bare = workspace.take(
      std::max(weight_gradient_->workspace_bytes(), data_gradient_ ? data_gradient_->workspace_bytes() : 0));
  workspace.rewind(mark);
  if (d_.normalization) backward_at_.normalize = workspace.take(normalize_backward_workspace_bytes(x_shape_, context_));
  requirements_.backward_workspace_bytes = workspace.size_bytes();
}

std::string CpuConv2d::describe() const {
  std::string out =
      fmt::format("{} {}, {} to {}, weights {}: ", text(d_), lockstep::name(d_.dtype), lockstep::name(d_.x_layout),
                  lockstep::name(d_.y_layout), forward_->weight_layout()->describe());
  const auto add = [&](const char* what, const std::unique_ptr<BareConvolution>& bare) {
    if (bare) out += fmt::format("{} {}", what, bare->describe());
  };
  add("forward", forward_);
  add("; data gradient", data_gradient_);
  add("; weight gradient", weight_gradient_);
  constexpr const char* kPasses[] = {"", "; normalisation in a pass, stored",
                                     "; normalisation in a pass, kept for backward",
                                     "; normalisation in a pass, repeated in backward"};
  const bool is_inference_pass = normalized_ == NormalizedInput::temporary && d_.inference;
  out += is_inference_pass ? "; normalisation in a pass" : kPasses[static_cast<std::size_t>(normalized_)];
  if (d_.statistics) out += "; statistics in a pass";
  return out;
}

const void* CpuConv2d::input(const void* x, const NormalizationForward& normalization, const OpMemory& memory,
                             std::size_t z_offset, bool compute) {
  if (normalized_ == NormalizedInput::none) return x;
  void* const z = normalized_ == NormalizedInput::stored  ? normalization.z
                  : normalized_ == NormalizedInput::saved ? memory.saved
                                                          : at(memory.workspace, z_offset);
  if (compute) normalize(x_shape_, *d_.normalization, x, normalization, z, context_);
  return z;
}

void CpuConv2d::run_forward(const Forward& args, const OpMemory& memory, Stream&) {
  const void* const z = input(args.x, args.normalization, memory, forward_at_.z, true);
  forward_->run(z, args.weight, args.y, at(memory.workspace, forward_at_.bare));
  if (d_.statistics)
    channel_sums(y_shape_, args.y, args.statistics.as<double>(), at(memory.workspace, forward_at_.sums), context_);
}

void CpuConv2d::run_backward(const Backward& args, const OpMemory& memory, Stream&) {
  require(!d_.inference, ErrorCode::internal, "{} was planned for inference, and backward was called", text(d_));
  void* const workspace = memory.workspace;
  const void* const z =
      input(args.x, args.normalization, memory, backward_at_.z, normalized_ == NormalizedInput::temporary);
  if (args.dweight_mode != GradientMode::skip)
    weight_gradient_->weight_gradient(z, args.dy, args.dweight.as<float>(),
                                      args.dweight_mode == GradientMode::accumulate, at(workspace, backward_at_.bare));
  if (d_.input_gradient) input_gradient(args, z, workspace);
}

void CpuConv2d::input_gradient(const Backward& args, const void* z, void* workspace) {
  const auto data_gradient = [&](void* target) {
    if (target == nullptr) target = at(workspace, backward_at_.dx);
    data_gradient_->run(args.dy, args.weight, target, at(workspace, backward_at_.bare));
    return target;
  };
  if (d_.normalization) {
    const InputNormalization& normalization = *d_.normalization;
    // The data gradient is written to dz first, unless another gradient is still stored there.
    const void* const gradient = data_gradient(args.gradient.dz == args.gradient.added ? nullptr : args.gradient.dz);
    // Without a residual, the mask follows from x, which the sums read anyway.
    const void* const mask = normalization.residual == InputNormalization::Residual::none ? nullptr : z;
    normalize_backward(x_shape_, normalization, args.x, args.normalization, mask, gradient, args.gradient,
                       at(workspace, backward_at_.normalize), context_);
    return;
  }
  if (args.dx_mode == GradientMode::skip) return;
  const bool accumulate = args.dx_mode == GradientMode::accumulate;
  const void* const gradient = data_gradient(accumulate ? nullptr : args.dx);
  if (accumulate) add_into(d_.dtype, args.dx, gradient, static_cast<std::size_t>(d_.x.n_elements()), context_);
}

}  // namespace

std::unique_ptr<Conv2d> make_conv2d(const Conv2dDescription& description, const CpuContext& context) {
  return std::make_unique<CpuConv2d>(description, context);
}

}  // namespace lockstep::cpu

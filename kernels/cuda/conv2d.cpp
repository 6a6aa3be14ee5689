// One unit: cuDNN's graphs, and passes for the parts that no graph computes (conv2d_plan.h).
//
//   forward   z, unless the graph makes it; y; statistics
//   backward  dweight from z, or from x where z is not stored; then dz and its sums, in one graph or in two passes
//   kept      what forward computes for backward: x padded or in blocks, and z where no caller stores it
//
// Weights have the type of x and are read as they are. Only where x is padded or in blocks, as in a network's first
// layer, forward copies them into that form. In fp32 (and tf32) dweight is written in place where it is overwritten. In
// fp16 and bf16 the graphs write dweight in that type; the caller converts it to fp32 (gives_low_precision_dweight()),
// or else the unit does. The graphs' sums are fp32, and are converted to fp64 only where the description asks for it.
#include <algorithm>
#include <limits>
#include <memory>

#include "kernels/cuda/base/conversions.h"
#include "kernels/cuda/base/timing.h"
#include "kernels/cuda/conv2d_plan.h"
#include "kernels/cuda/normalization.h"
#include "lockstep/error.h"
#include "lockstep/workspace.h"

namespace lockstep::cuda {
namespace {

using Residual = InputNormalization::Residual;

ActivationShape activation(const Shape& s, DType dtype) { return {s[0] * s[1] * s[2], s[3], dtype}; }
std::size_t bytes_of(const Shape& s, DType dtype) {
  return static_cast<std::size_t>(s.n_elements()) * size_bytes(dtype);
}

class CudaConv2d final : public CudaOp<Conv2dDescription> {
 public:
  CudaConv2d(const Conv2dDescription& description, const ConvolutionUnit& unit, Level level,
             const CudaContext& context);

  OpMemoryRequirements memory_requirements() const override { return requirements_; }
  std::string describe() const override;
  std::shared_ptr<const ParameterLayout> weight_layout() const override { return layout_; }
  DType statistics_dtype() const override {
    return d_.fp32_sums && d_.statistics && unit_.gives_statistics() ? DType::fp32 : DType::fp64;
  }
  DType sums_dtype() const override { return d_.fp32_sums && fused_gradient_ ? DType::fp32 : DType::fp64; }
  bool gives_low_precision_dweight() const override { return narrows() && !unit_.has_own_input(); }
  std::optional<PartWorkspaces> workspace_of_parts() const override { return part_workspaces_; }
  void run_forward(const Forward& args, const OpMemory& memory, Stream& stream) override;
  void run_backward(const Backward& args, const OpMemory& memory, Stream& stream) override;

  /// For describe(): the available plans, and how many bytes a plan of separate passes would move.
  void set_alternatives(std::string levels, const BytesMoved& by_passes) {
    levels_ = std::move(levels);
    by_passes_ = by_passes;
  }

 private:
  std::unique_ptr<PlannedConvolution> planned(ConvolutionGraph graph) const;
  void plan_kept();
  void plan_forward();
  void plan_backward();

  bool narrows() const { return d_.dtype != DType::fp32; }
  bool is_in_blocks() const { return unit_.input == ConvolutionInput::blocks; }
  PixelBlocks blocks() const { return pixel_blocks(d_.x, d_.out_channels, d_.kernel_size, d_.padding); }
  Rows weight_rows() const { return {d_.out_channels * d_.kernel_size * d_.kernel_size, d_.x[3], unit_.shape.x[3]}; }
  /// The size of the graphs' weights, and of their gradient, in the type of the graphs.
  std::size_t weight_bytes() const {
    return static_cast<std::size_t>(d_.out_channels * unit_.shape.kernel_size * unit_.shape.kernel_size *
                                    unit_.shape.x[3]) *
           size_bytes(d_.dtype);
  }
  /// Memory for what forward computes for itself and for backward: in `saved`, or for inference in the workspace.
  void* kept(const OpMemory& memory, std::size_t offset) const {
    return at(d_.inference ? memory.workspace : memory.saved, offset);
  }
  /// Scale and bias in the type of the graphs.
  const void* scale_bias(const NormalizationForward& n) const {
    return narrows() ? n.low_precision_scale_bias : n.scale_bias;
  }
  const void* residual_scale_bias(const NormalizationForward& n) const {
    return narrows() ? n.low_precision_residual_scale_bias : n.residual_scale_bias;
  }
  /// z, or the padded or blocked x, if it is stored in memory; otherwise x.
  void* input(const void* x, const NormalizationForward& normalization, const OpMemory& memory) const;

  /// The weights as the forward graph reads them.
  const void* forward_weight(const void* given, const OpMemory& memory, Stream& stream);
  void weight_gradient(const Backward& args, const OpMemory& memory, Stream& stream);
  void fused_gradient(const Backward& args, const OpMemory& memory, Stream& stream);
  void gradient_in_passes(const Backward& args, const OpMemory& memory, Stream& stream);
  void plain_gradient(const Backward& args, const OpMemory& memory, Stream& stream);

  ConvolutionUnit unit_;
  Level level_;
  std::string levels_;
  BytesMoved by_passes_;
  std::shared_ptr<const ParameterLayout> layout_;
  std::unique_ptr<PlannedConvolution> forward_, weight_gradient_, data_gradient_,
      fused_gradient_;  // null if not computed
  ActivationShape x_shape_, y_shape_;
  OpMemoryRequirements requirements_;
  PartWorkspaces part_workspaces_;

  std::size_t kept_z_at_ = 0;  // of z, or of the padded or blocked x
  struct ForwardOffsets {
    std::size_t weight = 0, statistics = 0, graph = 0, sums = 0;
  } forward_at_;
  struct BackwardOffsets {
    std::size_t dweight = 0, weight_graph = 0;
    std::size_t sums = 0, unused = 0, fused_graph = 0;  // sums: those of x, and then those of the residual
    std::size_t dx = 0, data_graph = 0, normalize = 0;
  } backward_at_;
};

CudaConv2d::CudaConv2d(const Conv2dDescription& description, const ConvolutionUnit& unit, Level level,
                       const CudaContext& context)
    : PlannedOp(description, context),
      unit_(unit),
      level_(level),
      x_shape_(activation(description.x, description.dtype)),
      y_shape_(activation(description.y(), description.dtype)) {
  layout_ = d_.weight_layout;
  if (!layout_) layout_ = std::make_shared<KrscLayout>(d_.out_channels, d_.kernel_size, d_.x[3]);
  require(dynamic_cast<const KrscLayout*>(layout_.get()) != nullptr, ErrorCode::internal,
          "conv2d {}: weights in the layout {} are not those of the cuda backend", text(unit_.shape),
          layout_->describe());
  forward_ = planned(unit_.forward);
  if (!d_.inference) {
    weight_gradient_ = planned(unit_.weight_gradient);
    if (d_.input_gradient) data_gradient_ = planned(ConvolutionGraph::data_gradient);
    if (d_.input_gradient && unit_.has_fused_gradient()) fused_gradient_ = planned(unit_.fused_gradient);
  }
  plan_kept();
  plan_forward();
  if (!d_.inference) plan_backward();
}

std::unique_ptr<PlannedConvolution> CudaConv2d::planned(ConvolutionGraph graph) const {
  auto plan = plan_convolution(graph, unit_.shape, context_);
  require(plan != nullptr, ErrorCode::not_supported, "conv2d {}: {} has no plan for '{}'", text(unit_.shape),
          convolution_device(context_), cuda::name(graph));
  return plan;
}

void CudaConv2d::plan_kept() {
  WorkspacePlan kept;
  if (unit_.input == ConvolutionInput::saved || unit_.input == ConvolutionInput::temporary || unit_.has_own_input())
    kept_z_at_ = kept.take(bytes_of(unit_.shape.x, d_.dtype));
  requirements_.saved_bytes = kept.size_bytes();
}

void CudaConv2d::plan_forward() {
  WorkspacePlan workspace;
  if (d_.inference) {
    workspace.take(requirements_.saved_bytes);
    requirements_.saved_bytes = 0;
  }
  if (unit_.has_own_input()) forward_at_.weight = workspace.take(weight_bytes());
  if (unit_.gives_statistics())
    forward_at_.statistics = workspace.take(2 * static_cast<std::size_t>(d_.out_channels) * sizeof(float));
  const std::size_t mark = workspace.mark();
  forward_at_.graph = workspace.take(forward_->workspace_bytes());
  workspace.rewind(mark);
  if (d_.statistics && !unit_.gives_statistics())
    forward_at_.sums = workspace.take(channel_sums_workspace_bytes(y_shape_, context_));
  requirements_.forward_workspace_bytes = workspace.size_bytes();
}

void CudaConv2d::plan_backward() {
  const std::size_t c = static_cast<std::size_t>(d_.x[3]);
  WorkspacePlan of_weight, workspace;
  backward_at_.dweight = of_weight.take(weight_bytes());
  backward_at_.weight_graph = of_weight.take(weight_gradient_->workspace_bytes());

  if (fused_gradient_) {
    backward_at_.sums = workspace.take(4 * c * sizeof(float));
    backward_at_.unused = workspace.take(6 * c * sizeof(float));
    backward_at_.fused_graph = workspace.take(fused_gradient_->workspace_bytes());
  }
  if (data_gradient_) {
    workspace.rewind(0);
    backward_at_.dx = workspace.take(bytes_of(d_.x, d_.dtype));
    const std::size_t mark = workspace.mark();
    backward_at_.data_graph = workspace.take(data_gradient_->workspace_bytes());
    workspace.rewind(mark);
    if (d_.normalization)
      backward_at_.normalize = workspace.take(normalize_backward_workspace_bytes(x_shape_, context_));
  }
  part_workspaces_ = {.weight_gradient = of_weight.size_bytes(), .rest = workspace.size_bytes()};
  requirements_.backward_workspace_bytes = std::max(part_workspaces_.weight_gradient, part_workspaces_.rest);
}

std::string CudaConv2d::describe() const {
  const auto megabytes = [](double moved) { return moved * 1e-6; };
  const BytesMoved moved = bytes_moved(d_, unit_);
  std::string out =
      fmt::format("conv2d {}, {}, weights {}: {} (of {})", text(unit_.shape), text(d_.normalization),
                  layout_->describe(), cuda::name(level_), levels_.empty() ? cuda::name(level_) : levels_);
  const auto add = [&](ConvolutionGraph graph, const std::unique_ptr<PlannedConvolution>& plan) {
    if (!plan) return;
    out += fmt::format("; {}: {}", cuda::name(graph), plan->plan());
    if (plan->n_plans() > 1) out += fmt::format(" of {}", plan->n_plans());
  };
  add(unit_.forward, forward_);
  add(unit_.fused_gradient, fused_gradient_);
  if (!fused_gradient_) add(ConvolutionGraph::data_gradient, data_gradient_);
  add(unit_.weight_gradient, weight_gradient_);
  if (unit_.input == ConvolutionInput::padded) out += fmt::format("; channels padded to {}", unit_.shape.x[3]);
  if (is_in_blocks()) out += "; x in blocks of 2x2 pixels";
  if (d_.normalization && !unit_.makes_z()) out += "; normalisation in a pass";
  if (d_.statistics && !unit_.gives_statistics()) out += "; statistics in a pass";
  out +=
      fmt::format("; moves {:.1f} MB forward, {:.1f} MB backward", megabytes(moved.forward), megabytes(moved.backward));
  if (level_ != Level::passes)
    out += fmt::format(" (by passes {:.1f} and {:.1f})", megabytes(by_passes_.forward), megabytes(by_passes_.backward));
  return out;
}

void* CudaConv2d::input(const void* x, const NormalizationForward& normalization, const OpMemory& memory) const {
  if (unit_.input == ConvolutionInput::x || unit_.input == ConvolutionInput::inside) return const_cast<void*>(x);
  return unit_.input == ConvolutionInput::stored ? normalization.z : kept(memory, kept_z_at_);
}

const void* CudaConv2d::forward_weight(const void* given, const OpMemory& memory, Stream& stream) {
  if (!unit_.has_own_input()) return given;
  void* const copy = at(memory.workspace, forward_at_.weight);
  if (is_in_blocks())
    weights_to_blocks(d_.dtype, given, copy, blocks(), context_, stream);
  else
    pad_rows(d_.dtype, given, copy, weight_rows(), context_, stream);
  return copy;
}

void CudaConv2d::run_forward(const Forward& args, const OpMemory& memory, Stream& stream) {
  const NormalizationForward& normalization = args.normalization;
  const void* const weight = forward_weight(args.weight, memory, stream);
  void* const z = input(args.x, normalization, memory);
  if (unit_.input == ConvolutionInput::padded)
    pad_rows(d_.dtype, args.x, z, {x_shape_.rows, d_.x[3], unit_.shape.x[3]}, context_, stream);
  if (is_in_blocks()) to_blocks(d_.dtype, args.x, z, blocks(), context_, stream);
  if (d_.normalization && !unit_.makes_z())
    normalize(x_shape_, *d_.normalization, args.x, normalization, z, context_, stream);

  ConvolutionTensors tensors{.x = unit_.makes_z() ? args.x : z, .weight = weight, .y = args.y};
  const bool in_fp32 = statistics_dtype() == DType::fp32;
  if (unit_.gives_statistics())
    tensors.statistics = in_fp32 ? args.statistics.as<float>() : at<float>(memory.workspace, forward_at_.statistics);
  if (unit_.makes_z()) {
    tensors.scale_bias = scale_bias(normalization);
    tensors.residual = normalization.residual;
    tensors.residual_scale_bias = residual_scale_bias(normalization);
    tensors.z = z;
  }
  forward_->run(tensors, at(memory.workspace, forward_at_.graph), stream);

  if (!d_.statistics || in_fp32) return;
  if (unit_.gives_statistics())
    to_double({{{tensors.statistics, args.statistics.as<double>(), 2 * d_.out_channels}}}, context_, stream);
  else
    channel_sums(y_shape_, args.y, args.statistics.as<double>(), at(memory.workspace, forward_at_.sums), context_,
                 stream);
}

void CudaConv2d::run_backward(const Backward& args, const OpMemory& memory, Stream& stream) {
  require(!d_.inference, ErrorCode::internal, "conv2d {} was planned for inference, and backward was called",
          text(unit_.shape));
  if (args.part != BackwardPart::rest && args.dweight_mode != GradientMode::skip) weight_gradient(args, memory, stream);
  if (args.part == BackwardPart::weight_gradient || !d_.input_gradient) return;
  if (!d_.normalization) return plain_gradient(args, memory, stream);
  // Not in place: the graph may still read elements of `added` after others of dz have been written.
  const bool fits = fused_gradient_ && (args.gradient.added != nullptr) == unit_.fused_gradient_adds() &&
                    args.gradient.added != args.gradient.dz;
  return fits ? fused_gradient(args, memory, stream) : gradient_in_passes(args, memory, stream);
}

void CudaConv2d::weight_gradient(const Backward& args, const OpMemory& memory, Stream& stream) {
  const bool accumulate = args.dweight_mode == GradientMode::accumulate, is_narrow = args.dweight.dtype != DType::fp32;
  require(!is_narrow || gives_low_precision_dweight(), ErrorCode::internal,
          "conv2d {}: its weight gradient is not written in {}", text(unit_.shape), lockstep::name(d_.dtype));
  const bool in_place = is_narrow || (!narrows() && !accumulate);
  void* const dweight = in_place ? args.dweight.data : at(memory.workspace, backward_at_.dweight);
  ConvolutionTensors tensors{.x = input(args.x, args.normalization, memory), .dy = args.dy, .dweight = dweight};
  if (unit_.input == ConvolutionInput::inside) tensors.scale_bias = scale_bias(args.normalization);
  weight_gradient_->run(tensors, at(memory.workspace, backward_at_.weight_graph), stream);
  if (in_place) return;
  if (is_in_blocks())
    widen_from_blocks(d_.dtype, dweight, args.dweight.as<float>(), blocks(), accumulate, context_, stream);
  else if (narrows())
    widen(d_.dtype, dweight, args.dweight.as<float>(), weight_rows(), accumulate, context_, stream);
  else
    add_into({layout_->n_elements(), DType::fp32}, dweight, args.dweight.as<float>(), context_, stream);
}

void CudaConv2d::fused_gradient(const Backward& args, const OpMemory& memory, Stream& stream) {
  const std::int64_t c = d_.x[3];
  const NormalizationBackward& gradient = args.gradient;
  const bool in_fp32 = sums_dtype() == DType::fp32;
  float* const sums = in_fp32 ? gradient.sums.as<float>() : at<float>(memory.workspace, backward_at_.sums);
  float* const residual_sums =
      in_fp32 ? gradient.residual_sums.as<float>() : at<float>(memory.workspace, backward_at_.sums) + 2 * c;
  auto* const unused = at<float>(memory.workspace, backward_at_.unused);
  fused_gradient_->run({.x = args.x,
                        .weight = args.weight,
                        .residual = args.normalization.residual,
                        .dy = args.dy,
                        .dx = gradient.dz,
                        .added = gradient.added,
                        .mean_inverse_stddev = gradient.mean_inverse_stddev,
                        .gamma = gradient.gamma,
                        .beta = gradient.beta,
                        .sums = sums,
                        .unused = unused,
                        .residual_mean_inverse_stddev = gradient.residual_mean_inverse_stddev,
                        .residual_gamma = gradient.residual_gamma,
                        .residual_beta = gradient.residual_beta,
                        .residual_sums = residual_sums,
                        .residual_unused = unused + 3 * c},
                       at(memory.workspace, backward_at_.fused_graph), stream);
  if (in_fp32) return;
  const std::int64_t residual_c = d_.normalization->residual == Residual::normalized ? c : 0;
  to_double({{{sums, gradient.sums.as<double>(), 2 * c},
              {residual_sums, gradient.residual_sums.as<double>(), 2 * residual_c}}},
            context_, stream);
}

void CudaConv2d::gradient_in_passes(const Backward& args, const OpMemory& memory, Stream& stream) {
  // The data gradient is written to dz first, unless another gradient is still stored there.
  void* const target =
      args.gradient.dz == args.gradient.added ? at(memory.workspace, backward_at_.dx) : args.gradient.dz;
  data_gradient_->run({.weight = args.weight, .dy = args.dy, .dx = target},
                      at(memory.workspace, backward_at_.data_graph), stream);
  // Without a residual, the mask follows from x, which the sums read anyway.
  const void* const mask =
      d_.normalization->residual == Residual::none ? nullptr : input(args.x, args.normalization, memory);
  normalize_backward(x_shape_, *d_.normalization, args.x, args.normalization, mask, target, args.gradient,
                     at(memory.workspace, backward_at_.normalize), context_, stream);
}

void CudaConv2d::plain_gradient(const Backward& args, const OpMemory& memory, Stream& stream) {
  if (args.dx_mode == GradientMode::skip) return;
  const bool accumulate = args.dx_mode == GradientMode::accumulate;
  void* const target = accumulate ? at(memory.workspace, backward_at_.dx) : args.dx;
  data_gradient_->run({.weight = args.weight, .dy = args.dy, .dx = target},
                      at(memory.workspace, backward_at_.data_graph), stream);
  if (accumulate) add_into({static_cast<std::size_t>(d_.x.n_elements()), d_.dtype}, target, args.dx, context_, stream);
}

/// The time of forward and backward in seconds.
double seconds_of(CudaConv2d& convolution, const Conv2dDescription& d, const CudaContext& context) {
  const auto memory = [&](std::size_t size) { return std::make_unique<TimingMemory>(size, context); };
  const std::size_t x_bytes = bytes_of(d.x, d.dtype), y_bytes = bytes_of(d.y(), d.dtype);
  const std::size_t weight_bytes = convolution.weight_layout()->n_elements() * sizeof(float);
  const std::size_t channels = static_cast<std::size_t>(std::max(d.x[3], d.out_channels));
  const OpMemoryRequirements requirements = convolution.memory_requirements();
  const auto x = memory(x_bytes), z = memory(x_bytes), residual = memory(x_bytes), dx = memory(x_bytes),
             added = memory(x_bytes), y = memory(y_bytes), weight = memory(weight_bytes),
             dweight = memory(weight_bytes), numbers = memory(2 * channels * sizeof(float)),
             sums = memory(2 * channels * sizeof(double)), other_sums = memory(2 * channels * sizeof(double)),
             workspace = memory(std::max(requirements.forward_workspace_bytes, requirements.backward_workspace_bytes)),
             saved = memory(requirements.saved_bytes);
  const bool stores = d.normalization && d.normalization->store;
  const NormalizationForward normalization{.scale_bias = numbers->as<float>(),
                                           .residual = residual->as(),
                                           .residual_scale_bias = numbers->as<float>(),
                                           .z = z->as(),
                                           .low_precision_scale_bias = numbers->as(),
                                           .low_precision_residual_scale_bias = numbers->as()};
  const OpMemory op_memory{workspace->as(), saved->as()};
  return cuda::seconds_of(
      [&](Stream& stream) {
        convolution.forward({.x = x->as(),
                             .weight = weight->as(),
                             .y = y->as(),
                             .statistics = {sums->as(), convolution.statistics_dtype()},
                             .normalization = normalization},
                            op_memory, stream);
        if (d.inference) return;
        convolution.backward(
            {.dy = y->as(),
             .x = x->as(),
             .weight = weight->as(),
             .dweight = {dweight->as(), convolution.gives_low_precision_dweight() ? d.dtype : DType::fp32},
             .dx = dx->as(),
             .normalization = normalization,
             .gradient = {.mean_inverse_stddev = numbers->as<float>(),
                          .residual_mean_inverse_stddev = numbers->as<float>(),
                          .added = stores ? added->as() : nullptr,
                          .dz = dx->as(),
                          .sums = {sums->as(), convolution.sums_dtype()},
                          .residual_sums = {other_sums->as(), convolution.sums_dtype()},
                          .gamma = numbers->as<float>(),
                          .beta = numbers->as<float>(),
                          .residual_gamma = numbers->as<float>(),
                          .residual_beta = numbers->as<float>()}},
            op_memory, stream);
      },
      context);
}

}  // namespace

std::unique_ptr<Conv2d> make_conv2d(const Conv2dDescription& description, const CudaContext& context) {
  check(description);
  std::vector<LeveledUnit> units = units_of(description, context);
  std::string all;
  for (const LeveledUnit& unit : units) all = name(unit.level) + std::string(all.empty() ? "" : ", ") + all;
  const auto make = [&](std::size_t i) {
    return std::make_unique<CudaConv2d>(description, units[i].unit, units[i].level, context);
  };
  const ConvolutionUnit passes = units.back().unit;
  std::size_t chosen = 0;
  if (!context.options.convolution.empty()) {
    const Level wanted = level_of(context.options.convolution);
    while (units[chosen].level > wanted) ++chosen;
  } else {
    // Plans that cuDNN compiles for older GPUs come last: only timing can show whether they are faster than separate
    // passes.
    std::stable_partition(units.begin(), units.end(), [](const LeveledUnit& unit) {
      return !ends_in_reductions(unit.unit.forward, unit.unit.shape);
    });
    if (context.algorithms && !context.described) {
      const std::string key =
          fmt::format("{}, conv2d {}, {}{}{}", convolution_device(context), choice_text(passes.shape),
                      text(description.normalization), description.statistics ? ", statistics" : "",
                      description.inference ? ", inference" : "");
      std::vector<std::string> names;
      for (const LeveledUnit& unit : units) names.emplace_back(name(unit.level));
      chosen = context.algorithms->choose(key, names,
                                          [&](std::size_t i) { return seconds_of(*make(i), description, context); });
    }
  }
  const auto is_possible = [&](const LeveledUnit& unit) {
    return unit.level == Level::passes || can_be_planned(description, unit.unit, context);
  };
  auto taken = std::find_if(units.begin() + static_cast<std::ptrdiff_t>(chosen), units.end(), is_possible);
  if (taken == units.end()) taken = std::ranges::find_if(units, is_possible);
  auto convolution = make(static_cast<std::size_t>(taken - units.begin()));
  convolution->set_alternatives(std::move(all), bytes_moved(description, passes));
  return convolution;
}

}  // namespace lockstep::cuda

#include "kernels/cuda/conv2d_plan.h"

#include <algorithm>

#include "kernels/cuda/base/conversions.h"
#include "lockstep/error.h"

namespace lockstep::cuda {
namespace {

using Graph = ConvolutionGraph;
using Residual = InputNormalization::Residual;

constexpr std::int64_t kMaxElements = 0x7fffffff;  // the maximum number of elements of a tensor

ConvolutionShape shape_of(const Conv2dDescription& d) {
  return {.x = d.x,
          .out_channels = d.out_channels,
          .kernel_size = d.kernel_size,
          .stride = d.stride,
          .padding = d.padding,
          .dtype = d.dtype,
          .tf32 = d.tf32};
}

/// The first layer of a network has 3 channels, which is too few for the loads of tensor cores. If the convolution also
/// computes statistics, they are padded to 8, or for a stride of 2 arranged in blocks of 2 x 2 pixels. (A graph with
/// statistics has no plan for fewer than 8 channels, nor for 7 x 7 windows, which become 4 x 4 in blocks.) Otherwise
/// they are padded to 4, which is enough for a bare convolution.
bool wants_padding(const Conv2dDescription& d) {
  return size_bytes(d.dtype) == 2 && d.x[3] < 8 && !d.normalization && (!d.input_gradient || d.inference);
}
ConvolutionShape padded(ConvolutionShape shape, std::int64_t channels) {
  shape.x = {shape.x[0], shape.x[1], shape.x[2], channels};
  return shape;
}
ConvolutionShape in_blocks(ConvolutionShape shape) {
  const PixelBlocks of = pixel_blocks(shape.x, shape.out_channels, shape.kernel_size, shape.padding);
  shape.x = of.blocks;
  shape.kernel_size = of.block_kernel_size;
  shape.stride = 1;
  shape.padding = 0;
  return shape;
}

/// The forward graph that computes z itself.
Graph chained_forward(const InputNormalization& normalization) {
  constexpr Graph kGraphs[] = {Graph::normalized_forward, Graph::residual_forward, Graph::normalized_residual_forward};
  return kGraphs[static_cast<std::size_t>(normalization.residual)];
}

/// The data-gradient graph that also goes back through the normalisation. If other layers read z, there is a gradient
/// to add. With a residual, there are only graphs that add a gradient.
Graph chained_gradient(const InputNormalization& normalization) {
  constexpr Graph kAdding[] = {Graph::normalized_data_gradient_added, Graph::residual_data_gradient_added,
                               Graph::normalized_residual_data_gradient_added};
  if (normalization.store) return kAdding[static_cast<std::size_t>(normalization.residual)];
  return normalization.residual == Residual::none ? Graph::normalized_data_gradient : Graph::data_gradient;
}

/// `has_plan` says whether a graph has plans for a shape.
void chain(ConvolutionUnit& unit, const Conv2dDescription& d, const auto& has_plan) {
  const InputNormalization& normalization = *d.normalization;
  if (!normalization.relu) return;
  const Graph forward = chained_forward(normalization), gradient = chained_gradient(normalization);
  // Without a residual, z stays inside the graph. This is impossible if other layers read z, or if the weight gradient
  // cannot recompute it.
  const bool inside = normalization.residual == Residual::none;
  if (inside ? !normalization.store && has_plan(forward, unit.shape) &&
                   (d.inference || has_plan(Graph::normalized_weight_gradient, unit.shape))
             : has_plan(forward, unit.shape)) {
    unit.forward = forward;
    if (inside) {
      unit.input = ConvolutionInput::inside;
      unit.weight_gradient = Graph::normalized_weight_gradient;
    }
  }
  if (!d.inference && gradient != Graph::data_gradient && has_plan(gradient, unit.shape))
    unit.fused_gradient = gradient;
}

}  // namespace

const char* name(Level level) {
  constexpr const char* kNames[] = {"passes", "statistics", "chain"};
  return kNames[static_cast<std::size_t>(level)];
}

Level level_of(const std::string& wanted) {
  for (Level level : kLevels)
    if (wanted == name(level)) return level;
  fail(ErrorCode::usage, "convolutions have the levels passes, statistics and chain, not {}", wanted);
}

bool ConvolutionUnit::gives_statistics() const { return forward != Graph::forward; }
bool ConvolutionUnit::makes_z() const { return forward != Graph::forward && forward != Graph::forward_statistics; }

void check(const Conv2dDescription& d) {
  const std::string what = text(shape_of(d));
  require(d.dtype == DType::fp32 || d.dtype == DType::fp16 || d.dtype == DType::bf16, ErrorCode::not_supported,
          "conv2d {}: the cuda backend computes in fp32, fp16 or bf16", what);
  for (const Shape& shape : {d.x, shape_of(d).y()})
    require(
        shape.n_elements() <= kMaxElements, ErrorCode::not_supported,
        "conv2d {}: a tensor of {} elements, but most kernels of cuDNN address at most {}: use a smaller batch, for "
        "example with train.accumulate",
        what, shape.n_elements(), kMaxElements);
  require(d.x_layout == Layout::nhwc && d.y_layout == Layout::nhwc, ErrorCode::not_supported,
          "conv2d {}: the cuda backend computes in nhwc", what);
}

ConvolutionUnit unit_at(Level level, const Conv2dDescription& d, const CudaContext& context) {
  const auto has_plan = [&](Graph graph, const ConvolutionShape& shape) {
    return count_plans(graph, shape, context) > 0;
  };
  ConvolutionUnit unit;
  unit.shape = shape_of(d);
  if (d.normalization)
    unit.input = d.normalization->store ? ConvolutionInput::stored
                 : d.inference          ? ConvolutionInput::temporary
                                        : ConvolutionInput::saved;
  if (level == Level::chain && d.normalization) chain(unit, d, has_plan);
  const bool wants_statistics = level >= Level::statistics && d.statistics;
  if (wants_padding(d)) {
    const auto gives_statistics = [&](const ConvolutionShape& shape) {
      return wants_statistics && has_plan(Graph::forward_statistics, shape);
    };
    const bool blocks = d.stride == 2 && d.kernel_size > 1 && gives_statistics(in_blocks(unit.shape));
    unit.input = blocks ? ConvolutionInput::blocks : ConvolutionInput::padded;
    const bool eight = d.x[3] > 4 || gives_statistics(padded(unit.shape, 8));
    unit.shape = blocks ? in_blocks(unit.shape) : padded(unit.shape, eight ? 8 : 4);
  }
  if (wants_statistics && unit.forward == Graph::forward && has_plan(Graph::forward_statistics, unit.shape))
    unit.forward = Graph::forward_statistics;
  return unit;
}

std::vector<ConvolutionGraph> graphs_of(const Conv2dDescription& d, const ConvolutionUnit& unit) {
  std::vector<ConvolutionGraph> graphs{unit.forward};
  if (d.inference) return graphs;
  graphs.push_back(unit.weight_gradient);
  if (!d.input_gradient) return graphs;
  graphs.push_back(Graph::data_gradient);
  if (unit.has_fused_gradient()) graphs.push_back(unit.fused_gradient);
  return graphs;
}

bool can_be_planned(const Conv2dDescription& d, const ConvolutionUnit& unit, const CudaContext& context) {
  const std::vector<Graph> graphs = graphs_of(d, unit);
  return std::all_of(graphs.begin(), graphs.end(),
                     [&](Graph graph) { return plan_convolution(graph, unit.shape, context) != nullptr; });
}

std::optional<std::size_t> plan_with_least_workspace(
    std::size_t n_plans, std::size_t n_compared, std::int64_t limit_bytes,
    const std::function<std::optional<std::int64_t>(std::size_t)>& workspace_of) {
  std::optional<std::size_t> best;
  std::int64_t least = 0;
  for (std::size_t i = 0, n_built = 0; i < n_plans; ++i) {
    if (n_built >= n_compared && least <= limit_bytes) break;
    const std::optional<std::int64_t> size_bytes = workspace_of(i);
    if (!size_bytes) continue;
    ++n_built;
    if (best && *size_bytes >= least) continue;
    best = i;
    least = *size_bytes;
  }
  return best;
}

std::vector<LeveledUnit> units_of(const Conv2dDescription& d, const CudaContext& context) {
  std::vector<LeveledUnit> units;
  for (Level level : kLevels) {
    const ConvolutionUnit unit = unit_at(level, d, context);
    if (units.empty() || !(unit == units.front().unit)) units.insert(units.begin(), {level, unit});
  }
  return units;
}

BytesMoved bytes_moved(const Conv2dDescription& d, const ConvolutionUnit& unit) {
  const double element = static_cast<double>(size_bytes(d.dtype));
  const double x = static_cast<double>(d.x.n_elements()) * element;
  const double y = static_cast<double>(d.y().n_elements()) * element;
  const double n_weights =
      static_cast<double>(d.out_channels * unit.shape.kernel_size * unit.shape.kernel_size * unit.shape.x[3]);
  const double weight = n_weights * element;
  const double cast = d.dtype == DType::fp32 ? 0 : n_weights * sizeof(float) + weight;  // dweight to fp32
  const double with_residual = d.normalization && d.normalization->residual != Residual::none ? x : 0;
  const double input = static_cast<double>(unit.shape.x.n_elements()) * element;  // the tensor that is convolved

  BytesMoved moved;
  moved.forward = weight + input + y;
  if (unit.has_own_input()) moved.forward += x + input + 2 * weight;
  if (unit.makes_z())
    moved.forward += with_residual + (unit.input == ConvolutionInput::inside ? 0 : x);
  else if (d.normalization)
    moved.forward += x + with_residual + x;
  if (d.statistics && !unit.gives_statistics()) moved.forward += y;
  if (d.inference) return moved;

  moved.backward = input + y + weight + cast;  // dweight
  if (!d.input_gradient) return moved;
  const double added = d.normalization && d.normalization->store ? x : 0;
  moved.backward += y + weight + x;                                  // data gradient
  if (d.normalization) moved.backward += x + with_residual + added;  // mask and x_hat
  if (d.normalization && !unit.has_fused_gradient())
    moved.backward += 2 * x + (d.normalization->residual == Residual::normalized ? x : 0);
  return moved;
}

std::string text(const std::optional<InputNormalization>& normalization) {
  if (!normalization) return "plain";
  static constexpr const char* kResiduals[] = {"normalized", "normalized + residual", "normalized + normalized"};
  return fmt::format("{}{}{}", kResiduals[static_cast<int>(normalization->residual)],
                     normalization->relu ? ", relu" : "", normalization->store ? ", stored" : "");
}

template <typename F>
void KrscLayout::for_each(const F& f) const {
  for (std::int64_t k = 0; k < out_channels_; ++k)
    for (std::int64_t c = 0; c < in_channels_; ++c)
      for (std::int64_t tap = 0; tap < taps_; ++tap)
        f((k * taps_ + tap) * in_channels_ + c, static_cast<std::size_t>((k * in_channels_ + c) * taps_ + tap));
}
void KrscLayout::pack(std::span<const float> canonical, float* parameter) const {
  for_each([&](std::int64_t at, std::size_t canonical_at) { parameter[at] = canonical[canonical_at]; });
}
void KrscLayout::unpack(const float* parameter, std::span<float> canonical) const {
  for_each([&](std::int64_t at, std::size_t canonical_at) { canonical[canonical_at] = parameter[at]; });
}

}  // namespace lockstep::cuda

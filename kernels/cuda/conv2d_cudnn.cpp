// The graphs of conv2d_bare.h as cuDNN plans: asks cuDNN for the plans of a graph, selects one, and executes it.
#include "kernels/cuda/conv2d_cudnn_graphs.h"

#include <algorithm>
#include <array>
#include <limits>
#include <map>
#include <optional>

#include "kernels/cuda/base/cudnn.h"
#include "kernels/cuda/base/stream.h"
#include "kernels/cuda/base/timing.h"
#include "kernels/cuda/conv2d_plan.h"
#include "lockstep/error.h"

namespace lockstep::cuda {
namespace {

// A plan with a larger workspace is a last resort: all ops share one workspace, which is as large as the largest.
constexpr std::int64_t kWorkspaceLimit = std::int64_t{64} << 20;  // bytes; used without timing
constexpr std::size_t kCompared = 3;                              // plans that are compared without timing
constexpr std::size_t kTimedWorkspaceLimit = std::size_t{1} << 30;
constexpr std::size_t kTimed = 8;  // plans of a graph; cuDNN ranks dozens of them, with the fast ones near the top
// cuDNN's heuristics, in this order: the second one is used only for graphs for which the first one has no plan.
constexpr std::array kHeuristics{fe::HeurMode_t::A, fe::HeurMode_t::FALLBACK};

struct ConvolutionPlans : PlanList {
  std::vector<Role> roles;
  bool has_reductions = false;
  std::optional<std::size_t> untimed{};  // the plan that is chosen without timing, once it is known
};

std::vector<fe::NumericalNote_t> unwanted_notes(const ConvolutionShape& shape, bool deterministic) {
  std::vector<fe::NumericalNote_t> notes{fe::NumericalNote_t::DOWN_CONVERT_INPUTS,
                                         fe::NumericalNote_t::REDUCED_PRECISION_REDUCTION};
  if (shape.dtype == DType::fp32 && !shape.tf32) notes.push_back(fe::NumericalNote_t::TENSOR_CORE);
  if (deterministic) notes.push_back(fe::NumericalNote_t::NONDETERMINISTIC);
  return notes;
}

/// Asks cuDNN for plans. The list is empty if it has none.
std::shared_ptr<ConvolutionPlans> ask(Kind kind, const ConvolutionShape& shape, const CudaContext& context,
                                      fe::HeurMode_t heuristic) {
  const bool deterministic = context.algorithms == nullptr;
  auto list = std::make_shared<ConvolutionPlans>();
  PlanList::Graph& graph = list->graph;
  graph.set_io_data_type(type_of(shape.dtype))
      .set_intermediate_data_type(fe::DataType_t::FLOAT)
      .set_compute_data_type(fe::DataType_t::FLOAT);
  if (context.described) graph.set_device_properties(properties_of(*context.described));
  GraphWriter writer(graph, shape, deterministic);
  writer.write(kind);
  list->roles = writer.roles();
  list->has_reductions = ends_in_reductions(kind, shape);
  if (list->has_reductions && !aligns_reductions(shape)) return list;
  LOCKSTEP_CUDA_CHECK(graph.validate());
  list->handle = context.described ? nullptr : cudnn_handle(context.device);
  if (graph.build_operation_graph(list->handle).is_bad()) return list;
  if (graph.create_execution_plans({heuristic}).is_bad()) return list;
  graph.deselect_numeric_notes(unwanted_notes(shape, deterministic));
  if (graph.check_support().is_bad()) return list;
  list->list();
  return list;
}

/// `anew` starts a new list, which drops the plans that were built so far and their device memory.
std::shared_ptr<ConvolutionPlans> plans_of(Kind kind, const ConvolutionShape& shape, const CudaContext& context,
                                           fe::HeurMode_t heuristic, bool anew = false) {
  // Layers of the same shape share their plans. The plans are never destroyed, since cuDNN may already be unloaded when
  // the process exits.
  static auto& known = *new std::map<std::string, std::shared_ptr<ConvolutionPlans>>;
  const std::string key = fmt::format("{}, {}, {}, {}, {}, {}", context.device, convolution_device(context), name(kind),
                                      text(shape), context.algorithms == nullptr, static_cast<int>(heuristic));
  auto& list = known[key];
  if (!list || anew) {
    cudnn_library();
    list = ask(kind, shape, context, heuristic);
  }
  return list;
}

class CudnnConvolution final : public PlannedConvolution {
 public:
  CudnnConvolution(std::shared_ptr<ConvolutionPlans> list, std::size_t plan, const ConvolutionShape& shape,
                   const CudaContext& context)
      : list_(std::move(list)),
        index_(plan),
        workspace_bytes_(list_->workspace_bytes(plan)),
        shape_(shape),
        handle_(context.described ? nullptr : cudnn_handle(context.device)) {}

  std::size_t workspace_bytes() const override { return workspace_bytes_; }
  std::string plan() const override { return list_->names[index_]; }
  std::size_t n_plans() const override { return list_->names.size(); }

  void run(const ConvolutionTensors& tensors, void* workspace, Stream& stream) override {
    std::array<void*, static_cast<std::size_t>(Role::residual_unused_c)> pointers;
    for (std::size_t i = 0; i < list_->roles.size(); ++i) pointers[i] = pointer_of(list_->roles[i], tensors, shape_);
    set_stream(handle_, native(stream));
    if (list_->has_reductions)  // these plans may add to previous values
      LOCKSTEP_CUDA_CHECK(cudaMemsetAsync(
          tensors.statistics, 0, 2 * static_cast<std::size_t>(shape_.out_channels) * sizeof(float), native(stream)));
    LOCKSTEP_CUDA_CHECK(list_->graph.execute_plan_at_index(
        handle_, pointers.data(), static_cast<int>(list_->roles.size()), workspace, list_->numbers[index_]));
  }

 private:
  std::shared_ptr<ConvolutionPlans> list_;
  std::size_t index_, workspace_bytes_;
  ConvolutionShape shape_;
  cudnnHandle_t handle_;
};

/// Memory for every tensor that occurs in a graph of the shape.
struct TimingTensors {
  TimingTensors(const ConvolutionShape& shape, const CudaContext& context)
      : x(bytes(shape.x, shape.dtype), context),
        z(bytes(shape.x, shape.dtype), context),
        residual(bytes(shape.x, shape.dtype), context),
        dx(bytes(shape.x, shape.dtype), context),
        y(bytes(shape.y(), shape.dtype), context),
        weight(bytes({shape.out_channels, shape.kernel_size, shape.kernel_size, shape.x[3]}, shape.dtype), context),
        dweight(bytes({shape.out_channels, shape.kernel_size, shape.kernel_size, shape.x[3]}, shape.dtype), context),
        channels(kVectors * sizeof(float) * static_cast<std::size_t>(std::max(shape.x[3], shape.out_channels)),
                 context) {
    const std::int64_t c = std::max(shape.x[3], shape.out_channels);
    float* next = channels.as<float>();
    const auto take = [&](int n) {
      float* taken = next;
      next += n * c;
      return taken;
    };
    tensors = {.x = x.as(),
               .weight = weight.as(),
               .y = y.as(),
               .statistics = take(2),
               .scale_bias = take(2),
               .residual = residual.as(),
               .residual_scale_bias = take(2),
               .z = z.as(),
               .dy = y.as(),
               .dx = dx.as(),
               .added = z.as(),
               .dweight = dweight.as(),
               .mean_inverse_stddev = take(2),
               .gamma = take(1),
               .beta = take(1),
               .sums = take(2),
               .unused = take(3),
               .residual_mean_inverse_stddev = take(2),
               .residual_gamma = take(1),
               .residual_beta = take(1),
               .residual_sums = take(2),
               .residual_unused = take(3)};
  }
  static std::size_t bytes(const Shape& s, DType dtype) {
    return static_cast<std::size_t>(s.n_elements()) * size_bytes(dtype);
  }
  static constexpr std::size_t kVectors = 24;
  TimingMemory x, z, residual, dx, y, weight, dweight, channels;
  ConvolutionTensors tensors;
};

std::size_t choose_by_time(const std::shared_ptr<ConvolutionPlans>& list, Kind kind, const ConvolutionShape& shape,
                           const CudaContext& context) {
  std::unique_ptr<TimingTensors> memory;
  double best = std::numeric_limits<double>::infinity();
  return context.algorithms->choose(
      fmt::format("{}, {}, {}", convolution_device(context), name(kind), choice_text(shape)),
      std::span(list->names).first(std::min(kTimed, list->names.size())), [&](std::size_t i) {
        if (!list->build(i) || list->workspace_bytes(i) > kTimedWorkspaceLimit)
          return std::numeric_limits<double>::infinity();
        if (!memory) memory = std::make_unique<TimingTensors>(shape, context);
        CudnnConvolution convolution(list, i, shape, context);
        const TimingMemory workspace(convolution.workspace_bytes(), context);
        const double seconds = seconds_of(
            [&](Stream& stream) { convolution.run(memory->tensors, workspace.as(), stream); }, context, best);
        best = std::min(best, seconds);
        return seconds;
      });
}

/// No value if no plan can be built.
std::optional<std::size_t> choose_by_workspace(ConvolutionPlans& list) {
  const std::size_t n_compared = list.has_reductions ? 1 : kCompared;  // plans with reductions take seconds to compile
  return plan_with_least_workspace(list.names.size(), n_compared, kWorkspaceLimit,
                                   [&](std::size_t i) -> std::optional<std::int64_t> {
                                     if (!list.build(i)) return {};
                                     return static_cast<std::int64_t>(list.workspace_bytes(i));
                                   });
}

}  // namespace

std::string convolution_device(const CudaContext& context) {
  if (context.is_offline()) return context.device_name;
  return fmt::format("{}, cuDNN {}", context.described ? context.described->name : context.device_name,
                     cudnn_version());
}

std::size_t count_plans(ConvolutionGraph graph, const ConvolutionShape& shape, const CudaContext& context) {
  if (context.is_offline()) return has_plan_offline(graph, shape, context.compute_capability) ? 1 : 0;
  std::size_t n = 0;
  for (const fe::HeurMode_t heuristic : kHeuristics)
    if (n == 0) n = plans_of(graph, shape, context, heuristic)->names.size();
  return n;
}

namespace {
/// Null if no plan of this heuristic can be built.
std::unique_ptr<PlannedConvolution> plan_by(fe::HeurMode_t heuristic, ConvolutionGraph graph,
                                            const ConvolutionShape& shape, const CudaContext& context) {
  auto list = plans_of(graph, shape, context, heuristic);
  if (list->names.empty()) return nullptr;
  const auto planned = [&](std::size_t i) { return std::make_unique<CudnnConvolution>(list, i, shape, context); };
  // Plans with reductions take cuDNN seconds to compile, so the first one is used without timing.
  if (context.algorithms && !context.described && !list->has_reductions) {
    const std::size_t chosen = choose_by_time(list, graph, shape, context);
    if (list->built.size() > 1) list = plans_of(graph, shape, context, heuristic, true);
    if (list->build(chosen)) return planned(chosen);
  }
  if (!list->untimed) {
    const std::optional<std::size_t> chosen = choose_by_workspace(*list);
    if (!chosen) return nullptr;
    if (!context.described && list->built.size() > 1) list = plans_of(graph, shape, context, heuristic, true);
    list->untimed = chosen;
  }
  return list->build(*list->untimed) ? planned(*list->untimed) : nullptr;
}
}  // namespace

std::unique_ptr<PlannedConvolution> plan_convolution(ConvolutionGraph graph, const ConvolutionShape& shape,
                                                     const CudaContext& context) {
  if (context.is_offline()) return plan_offline(graph, shape, context);
  for (const fe::HeurMode_t heuristic : kHeuristics)
    if (auto planned = plan_by(heuristic, graph, shape, context)) return planned;
  return nullptr;
}

}  // namespace lockstep::cuda

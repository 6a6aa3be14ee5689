// The graphs of conv2d_bare.h as cuDNN plans. The one file that includes cudnn-frontend, whose templates take long to
// compile.
//
// Which graphs have plans was found by trying with cuDNN 9.19 for an H200 (test/golden/cuda_plans_*.txt): in fp16
// nearly all; in bf16 and tf32 the bare ones and statistics, which are reductions there; in fp32 the bare ones. Its
// engines require: scale and bias of the tensors' type and in the order MUL, ADD, RELU_FWD; statistics together with a
// normalisation; the recomputed z of a gradient as SUB, MUL, MUL, ADD; the residual as second operand of its ADD; all
// coefficients of dbn_weight as outputs.
#define NV_CUDNN_FRONTEND_USE_DYNAMIC_LOADING
#if !__has_include(<cudnn_frontend.h>)
#error "cudnn-frontend's headers are missing: `make deps` fetches them, or build without CUDA: make CUDA=0"
#endif
#include <cudnn_frontend.h>

#include <algorithm>
#include <array>
#include <limits>
#include <map>

#include "kernels/cuda/base/cudnn.h"
#include "kernels/cuda/base/stream.h"
#include "kernels/cuda/base/timing.h"
#include "kernels/cuda/conv2d_bare.h"
#include "kernels/cuda/conv2d_offline.h"
#include "lockstep/error.h"

namespace lockstep::cuda {

static void check(cudnn_frontend::error_t status, const Place& place) {
  if (status.is_bad())
    throw_failure("cudnn-frontend", static_cast<int>(status.get_code()), status.get_message().c_str(), place);
}

namespace {

namespace fe = cudnn_frontend;
using fe::PointwiseMode_t;
using fe::graph::Graph;
using fe::graph::Tensor_attributes;
using Tensor = std::shared_ptr<Tensor_attributes>;
using Kind = ConvolutionGraph;

// A plan with a larger workspace is a last resort: all ops share one workspace, which is as large as the largest.
constexpr std::int64_t kWorkspaceLimit = std::int64_t{64} << 20;  // bytes, without timing
constexpr std::int64_t kTimedWorkspaceLimit = std::int64_t{1} << 30;

fe::DataType_t type_of(DType dtype) {
  switch (dtype) {
    case DType::fp16:
      return fe::DataType_t::HALF;
    case DType::bf16:
      return fe::DataType_t::BFLOAT16;
    default:
      return fe::DataType_t::FLOAT;
  }
}

/// The tensors of all graphs, by their number in a graph: pointers are passed in this order.
enum class Role : std::int64_t {
  x = 1,
  weight,
  y,
  sum,
  square_sum,
  scale,
  bias,
  residual,
  residual_scale,
  residual_bias,
  z,
  dy,
  dx,
  added,
  dweight,
  mean,
  inverse_stddev,
  gamma,
  beta,
  dz_sum,
  dz_x_hat_sum,
  unused_a,
  unused_b,
  unused_c,
  residual_mean,
  residual_inverse_stddev,
  residual_gamma,
  residual_beta,
  residual_dz_sum,
  residual_dz_x_hat_sum,
  residual_unused_a,
  residual_unused_b,
  residual_unused_c,
};

/// Part `part` of an array of parts of `size_bytes` each.
template <typename T>
void* part_of(T* data, int part, std::int64_t size_bytes) {
  return const_cast<char*>(reinterpret_cast<const char*>(data)) + part * size_bytes;
}

void* pointer_of(Role role, const ConvolutionTensors& t, const ConvolutionShape& shape) {
  const std::int64_t in = shape.x[3], io_bytes = static_cast<std::int64_t>(size_bytes(shape.dtype)) * in;
  const std::int64_t c_bytes = in * std::int64_t{sizeof(float)};
  const std::int64_t k_bytes = shape.out_channels * std::int64_t{sizeof(float)};
  switch (role) {
    case Role::x:
      return const_cast<void*>(t.x);
    case Role::weight:
      return const_cast<void*>(t.weight);
    case Role::y:
      return t.y;
    case Role::sum:
    case Role::square_sum:
      return part_of(t.statistics, role == Role::square_sum, k_bytes);
    case Role::scale:
    case Role::bias:
      return part_of(static_cast<const char*>(t.scale_bias), role == Role::bias, io_bytes);
    case Role::residual:
      return const_cast<void*>(t.residual);
    case Role::residual_scale:
    case Role::residual_bias:
      return part_of(static_cast<const char*>(t.residual_scale_bias), role == Role::residual_bias, io_bytes);
    case Role::z:
      return t.z;
    case Role::dy:
      return const_cast<void*>(t.dy);
    case Role::dx:
      return t.dx;
    case Role::added:
      return const_cast<void*>(t.added);
    case Role::dweight:
      return t.dweight;
    case Role::mean:
    case Role::inverse_stddev:
      return part_of(t.mean_inverse_stddev, role == Role::inverse_stddev, c_bytes);
    case Role::gamma:
    case Role::beta:
      return part_of(t.gamma_beta, role == Role::beta, c_bytes);
    case Role::dz_sum:
    case Role::dz_x_hat_sum:
      return part_of(t.sums, role == Role::dz_x_hat_sum, c_bytes);
    case Role::unused_a:
    case Role::unused_b:
    case Role::unused_c:
      return part_of(t.unused, static_cast<int>(role) - static_cast<int>(Role::unused_a), c_bytes);
    case Role::residual_mean:
    case Role::residual_inverse_stddev:
      return part_of(t.residual_mean_inverse_stddev, role == Role::residual_inverse_stddev, c_bytes);
    case Role::residual_gamma:
    case Role::residual_beta:
      return part_of(t.residual_gamma_beta, role == Role::residual_beta, c_bytes);
    case Role::residual_dz_sum:
    case Role::residual_dz_x_hat_sum:
      return part_of(t.residual_sums, role == Role::residual_dz_x_hat_sum, c_bytes);
    case Role::residual_unused_a:
    case Role::residual_unused_b:
    case Role::residual_unused_c:
      return part_of(t.residual_unused, static_cast<int>(role) - static_cast<int>(Role::residual_unused_a), c_bytes);
  }
  return nullptr;
}

/// Builds the description of one graph, with one or two lines for each part.
class GraphWriter {
 public:
  GraphWriter(Graph& graph, const ConvolutionShape& shape, bool deterministic)
      : graph_(graph), shape_(shape), io_(type_of(shape.dtype)), deterministic_(deterministic) {}

  void write(Kind kind);
  /// The numbers of tensors that do not belong to the graph itself, in ascending order.
  std::vector<Role> roles() const {
    std::vector<Role> sorted = roles_;
    std::sort(sorted.begin(), sorted.end());
    return sorted;
  }

 private:
  using Dims = std::vector<std::int64_t>;
  static Dims dims_of(const Shape& s) { return {s[0], s[3], s[1], s[2]}; }
  static Dims strides_of(const Dims& d) { return {d[1] * d[2] * d[3], 1, d[1] * d[3], d[1]}; }
  Dims weight_dims() const { return {shape_.out_channels, shape_.x[3], shape_.window, shape_.window}; }

  Tensor input(Role role, const Dims& dims, fe::DataType_t type) {
    roles_.push_back(role);
    return graph_.tensor(Tensor_attributes()
                             .set_uid(static_cast<std::int64_t>(role))
                             .set_dim(dims)
                             .set_stride(strides_of(dims))
                             .set_data_type(type));
  }
  Tensor x_like(Role role) { return input(role, dims_of(shape_.x), io_); }
  Tensor weight() { return input(Role::weight, weight_dims(), io_); }
  Tensor dy() { return input(Role::dy, dims_of(shape_.y()), io_); }
  /// One value per channel of x.
  Tensor channels(Role role, fe::DataType_t type) { return input(role, {1, shape_.x[3], 1, 1}, type); }

  void output(const Tensor& tensor, Role role, const Dims& dims, fe::DataType_t type) {
    roles_.push_back(role);
    tensor->set_output(true)
        .set_uid(static_cast<std::int64_t>(role))
        .set_dim(dims)
        .set_stride(strides_of(dims))
        .set_data_type(type);
  }
  void float_output(const Tensor& tensor, Role role, std::int64_t n) {
    output(tensor, role, {1, n, 1, 1}, fe::DataType_t::FLOAT);
  }

  Tensor pointwise(PointwiseMode_t mode, const Tensor& a, const Tensor& b = nullptr) {
    const auto attributes = fe::graph::Pointwise_attributes().set_mode(mode);
    return b ? graph_.pointwise(a, b, attributes) : graph_.pointwise(a, attributes);
  }
  template <typename Attributes>
  Attributes window() const {
    return Attributes()
        .set_padding({shape_.padding, shape_.padding})
        .set_stride({shape_.stride, shape_.stride})
        .set_dilation({1, 1});
  }

  Tensor scaled(const Tensor& t, Role scale, Role bias) {
    return pointwise(PointwiseMode_t::ADD, pointwise(PointwiseMode_t::MUL, t, channels(scale, io_)),
                     channels(bias, io_));
  }
  Tensor scaled_x() { return scaled(x_like(Role::x), Role::scale, Role::bias); }
  Tensor normalized_x() { return pointwise(PointwiseMode_t::RELU_FWD, scaled_x()); }
  Tensor stored_z(const Tensor& residual) {
    Tensor z = pointwise(PointwiseMode_t::RELU_FWD, residual);
    output(z, Role::z, dims_of(shape_.x), io_);
    return z;
  }

  void convolve(const Tensor& z, Kind kind) {
    Tensor y = graph_.conv_fprop(z, weight(), window<fe::graph::Conv_fprop_attributes>());
    output(y, Role::y, dims_of(shape_.y()), io_);
    if (kind == Kind::forward) return;
    if (ends_in_reductions(kind, shape_)) {  // of y before or after rounding: cuDNN does not document it
      sum_of(y, Role::sum);
      return sum_of(pointwise(PointwiseMode_t::MUL, y, y), Role::square_sum);
    }
    auto [sum, square_sum] = graph_.genstats(y, fe::graph::Genstats_attributes());
    float_output(sum, Role::sum, shape_.out_channels);
    float_output(square_sum, Role::square_sum, shape_.out_channels);
  }
  void sum_of(const Tensor& t, Role role) {
    const auto attributes =
        fe::graph::Reduction_attributes().set_mode(fe::ReductionMode_t::ADD).set_is_deterministic(deterministic_);
    float_output(graph_.reduction(t, attributes), role, shape_.out_channels);
  }

  /// A batch norm's input and coefficients, and its output recomputed from them.
  struct Norm {
    Tensor x, mean, inverse_stddev, gamma, z;
  };
  Norm norm(Role x, Role mean, Role inverse_stddev, Role gamma, Role beta) {
    const auto type = fe::DataType_t::FLOAT;
    Norm n{x_like(x), channels(mean, type), channels(inverse_stddev, type), channels(gamma, type), nullptr};
    Tensor t = pointwise(PointwiseMode_t::SUB, n.x, n.mean);
    t = pointwise(PointwiseMode_t::MUL, t, n.inverse_stddev);
    t = pointwise(PointwiseMode_t::MUL, t, n.gamma);
    n.z = pointwise(PointwiseMode_t::ADD, t, channels(beta, type));
    return n;
  }
  Norm norm_of_x() { return norm(Role::x, Role::mean, Role::inverse_stddev, Role::gamma, Role::beta); }
  Norm norm_of_residual() {
    return norm(Role::residual, Role::residual_mean, Role::residual_inverse_stddev, Role::residual_gamma,
                Role::residual_beta);
  }

  Tensor data_gradient() {
    Tensor dx = graph_.conv_dgrad(dy(), weight(), window<fe::graph::Conv_dgrad_attributes>());
    dx->set_dim(dims_of(shape_.x)).set_stride(strides_of(dims_of(shape_.x)));
    return dx;
  }
  Tensor data_gradient_added() { return pointwise(PointwiseMode_t::ADD, data_gradient(), x_like(Role::added)); }
  Tensor stored_dz(const Tensor& gradient, const Tensor& z) {
    Tensor dz = pointwise(PointwiseMode_t::RELU_BWD, gradient, z);
    output(dz, Role::dx, dims_of(shape_.x), io_);
    return dz;
  }
  void norm_sums(const Tensor& dz, const Norm& n, Role first) {
    const std::int64_t c = shape_.x[3];
    const auto role = [&](int i) { return static_cast<Role>(static_cast<std::int64_t>(first) + i); };
    auto [dz_x_hat_sum, dz_sum, a, b, constant] =
        graph_.dbn_weight(dz, n.x, n.mean, n.inverse_stddev, n.gamma, fe::graph::DBN_weight_attributes());
    float_output(dz_sum, role(0), c);
    float_output(dz_x_hat_sum, role(1), c);
    float_output(a, role(2), c);
    float_output(b, role(3), c);
    float_output(constant, role(4), c);
  }

  void weight_gradient(const Tensor& gradient, const Tensor& z) {
    Tensor dweight = graph_.conv_wgrad(gradient, z, window<fe::graph::Conv_wgrad_attributes>());
    output(dweight, Role::dweight, weight_dims(), io_);
  }

  Graph& graph_;
  ConvolutionShape shape_;
  fe::DataType_t io_;
  bool deterministic_;
  std::vector<Role> roles_;
};

void GraphWriter::write(Kind kind) {
  switch (kind) {
    case Kind::forward:
    case Kind::forward_statistics:
      return convolve(x_like(Role::x), kind);
    case Kind::normalized_forward:
      return convolve(normalized_x(), kind);
    case Kind::residual_forward: {
      const Tensor bn = scaled_x();
      return convolve(stored_z(pointwise(PointwiseMode_t::ADD, bn, x_like(Role::residual))), kind);
    }
    case Kind::normalized_residual_forward: {
      const Tensor bn = scaled_x();
      const Tensor other = scaled(x_like(Role::residual), Role::residual_scale, Role::residual_bias);
      return convolve(stored_z(pointwise(PointwiseMode_t::ADD, bn, other)), kind);
    }
    case Kind::data_gradient:
      return output(data_gradient(), Role::dx, dims_of(shape_.x), io_);
    case Kind::normalized_data_gradient:
    case Kind::normalized_data_gradient_added: {
      const Tensor gradient = kind == Kind::normalized_data_gradient ? data_gradient() : data_gradient_added();
      const Norm n = norm_of_x();
      return norm_sums(stored_dz(gradient, n.z), n, Role::dz_sum);
    }
    case Kind::residual_data_gradient_added: {
      const Tensor gradient = data_gradient_added();
      const Norm n = norm_of_x();
      const Tensor z = pointwise(PointwiseMode_t::ADD, n.z, x_like(Role::residual));
      return norm_sums(stored_dz(gradient, z), n, Role::dz_sum);
    }
    case Kind::normalized_residual_data_gradient_added: {
      const Tensor gradient = data_gradient_added();
      const Norm n = norm_of_x(), other = norm_of_residual();
      const Tensor dz = stored_dz(gradient, pointwise(PointwiseMode_t::ADD, other.z, n.z));
      norm_sums(dz, n, Role::dz_sum);
      return norm_sums(dz, other, Role::residual_dz_sum);
    }
    case Kind::weight_gradient: {
      const Tensor gradient = dy();
      return weight_gradient(gradient, x_like(Role::x));
    }
    case Kind::normalized_weight_gradient: {
      const Tensor gradient = dy();
      return weight_gradient(gradient, normalized_x());
    }
  }
}

std::shared_ptr<fe::DeviceProperties> properties_of(const DeviceDescription& description) {
  static std::map<std::string, std::shared_ptr<fe::DeviceProperties>> known;
  auto& properties = known[description.json];
  if (!properties) {
    auto made = std::make_shared<fe::DeviceProperties>();
    LOCKSTEP_CUDA_CHECK(made->deserialize({description.json.begin(), description.json.end()}));
    properties = std::move(made);
  }
  return properties;
}

/// The frontend counts deselected plans with the others, and rejects them only when they are built.
class SelectiveGraph final : public Graph {
 public:
  bool offers(std::int64_t plan) { return plans.check_support_at_index(plan).is_good(); }
};

/// A graph with cuDNN's list of plans for it, some of which are built.
struct PlanList {
  SelectiveGraph graph;
  std::vector<Role> roles;
  std::vector<std::string> names;     // the plans; empty: there is no plan
  std::vector<std::int64_t> numbers;  // the graph's own of them
  bool has_reductions = false;
  std::map<std::size_t, bool> built;

  bool build(std::size_t i) {
    const auto known = built.find(i);
    if (known != built.end()) return known->second;
    return built[i] = graph.build_plan_at_index(numbers[i]).is_good();
  }
  std::int64_t workspace_bytes(std::size_t i) const {
    std::int64_t size_bytes = 0;
    LOCKSTEP_CUDA_CHECK(graph.get_workspace_size_plan_at_index(numbers[i], size_bytes));
    return size_bytes;
  }
};

std::vector<fe::NumericalNote_t> unwanted_notes(const ConvolutionShape& shape, bool deterministic) {
  std::vector<fe::NumericalNote_t> notes{fe::NumericalNote_t::DOWN_CONVERT_INPUTS,
                                         fe::NumericalNote_t::REDUCED_PRECISION_REDUCTION};
  if (shape.dtype == DType::fp32 && !shape.tf32) notes.push_back(fe::NumericalNote_t::TENSOR_CORE);
  if (deterministic) notes.push_back(fe::NumericalNote_t::NONDETERMINISTIC);
  return notes;
}

/// Asks cuDNN for plans. The list is empty if it has none.
std::shared_ptr<PlanList> ask(Kind kind, const ConvolutionShape& shape, const CudaContext& context,
                              bool deterministic) {
  auto list = std::make_shared<PlanList>();
  SelectiveGraph& graph = list->graph;
  graph.set_io_data_type(type_of(shape.dtype))
      .set_intermediate_data_type(fe::DataType_t::FLOAT)
      .set_compute_data_type(fe::DataType_t::FLOAT);
  if (context.described) graph.set_device_properties(properties_of(*context.described));
  GraphWriter writer(graph, shape, deterministic);
  writer.write(kind);
  list->roles = writer.roles();
  list->has_reductions = ends_in_reductions(kind, shape);
  LOCKSTEP_CUDA_CHECK(graph.validate());
  const cudnnHandle_t handle = context.described ? nullptr : cudnn_handle(context.device);
  if (graph.build_operation_graph(handle).is_bad()) return list;
  if (graph.create_execution_plans({fe::HeurMode_t::A, fe::HeurMode_t::FALLBACK}).is_bad()) return list;
  graph.deselect_numeric_notes(unwanted_notes(shape, deterministic));
  if (graph.check_support().is_bad()) return list;
  for (std::int64_t i = 0; i < graph.get_execution_plan_count(); ++i) {
    if (!graph.offers(i)) continue;
    list->numbers.push_back(i);
    list->names.emplace_back();
    LOCKSTEP_CUDA_CHECK(graph.get_plan_name_at_index(i, list->names.back()));
  }
  return list;
}

/// `anew`: without the plans that were built so far, which use memory of the device.
std::shared_ptr<PlanList> plans_of(Kind kind, const ConvolutionShape& shape, const CudaContext& context,
                                   bool deterministic, bool anew = false) {
  static std::map<std::string, std::shared_ptr<PlanList>> known;  // layers of one shape share their plans
  const std::string key = fmt::format("{}, {}, {}, {}, {}", context.device, convolution_device(context), name(kind),
                                      text(shape), deterministic);
  auto& list = known[key];
  if (!list || anew) {
    cudnn_library();
    list = ask(kind, shape, context, deterministic);
  }
  return list;
}

class CudnnConvolution final : public PlannedConvolution {
 public:
  CudnnConvolution(std::shared_ptr<PlanList> list, std::size_t plan, const ConvolutionShape& shape,
                   const CudaContext& context)
      : list_(std::move(list)),
        index_(plan),
        workspace_bytes_(static_cast<std::size_t>(list_->workspace_bytes(plan))),
        shape_(shape),
        handle_(context.described ? nullptr : cudnn_handle(context.device)) {}

  std::size_t workspace_bytes() const override { return workspace_bytes_; }
  std::string plan() const override { return list_->names[index_]; }
  std::size_t n_plans() const override { return list_->names.size(); }

  void run(const ConvolutionTensors& tensors, void* workspace, Stream& stream) override {
    std::array<void*, static_cast<std::size_t>(Role::residual_unused_c)> pointers;
    for (std::size_t i = 0; i < list_->roles.size(); ++i) pointers[i] = pointer_of(list_->roles[i], tensors, shape_);
    set_stream(handle_, native(stream));
    if (list_->has_reductions)  // which may add to previous values
      LOCKSTEP_CUDA_CHECK(cudaMemsetAsync(
          tensors.statistics, 0, 2 * static_cast<std::size_t>(shape_.out_channels) * sizeof(float), native(stream)));
    LOCKSTEP_CUDA_CHECK(list_->graph.execute_plan_at_index(
        handle_, pointers.data(), static_cast<int>(list_->roles.size()), workspace, list_->numbers[index_]));
  }

 private:
  std::shared_ptr<PlanList> list_;
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
        weight(bytes({shape.out_channels, shape.window, shape.window, shape.x[3]}, shape.dtype), context),
        dweight(bytes({shape.out_channels, shape.window, shape.window, shape.x[3]}, shape.dtype), context),
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
               .gamma_beta = take(2),
               .sums = take(2),
               .unused = take(3),
               .residual_mean_inverse_stddev = take(2),
               .residual_gamma_beta = take(2),
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

std::size_t choose_by_time(const std::shared_ptr<PlanList>& list, Kind kind, const ConvolutionShape& shape,
                           const CudaContext& context, Algorithms& algorithms) {
  std::unique_ptr<TimingTensors> memory;
  double best = std::numeric_limits<double>::infinity();
  return algorithms.choose(fmt::format("{}, {}, {}", convolution_device(context), name(kind), choice_text(shape)),
                           list->names, [&](std::size_t i) {
                             if (!list->build(i) || list->workspace_bytes(i) > kTimedWorkspaceLimit)
                               return std::numeric_limits<double>::infinity();
                             if (!memory) memory = std::make_unique<TimingTensors>(shape, context);
                             CudnnConvolution convolution(list, i, shape, context);
                             const TimingMemory workspace(convolution.workspace_bytes(), context);
                             const double seconds = seconds_of(
                                 [&](Stream& stream) { convolution.run(memory->tensors, workspace.as(), stream); },
                                 context, best);
                             best = std::min(best, seconds);
                             return seconds;
                           });
}

}  // namespace

namespace {
/// A device that is known only by its properties.
bool is_offline(const CudaContext& context) { return context.described && context.described->json.empty(); }
}  // namespace

std::string convolution_device(const CudaContext& context) {
  if (is_offline(context)) return context.device_name;
  return fmt::format("{}, cuDNN {}", context.described ? context.described->name : context.device_name,
                     cudnn_version());
}

std::size_t count_plans(ConvolutionGraph graph, const ConvolutionShape& shape, const CudaContext& context,
                        const Algorithms* algorithms) {
  if (is_offline(context)) return has_plan_offline(graph, shape, context.compute_capability) ? 1 : 0;
  return plans_of(graph, shape, context, algorithms == nullptr)->names.size();
}

std::unique_ptr<PlannedConvolution> plan_convolution(ConvolutionGraph graph, const ConvolutionShape& shape,
                                                     const CudaContext& context, Algorithms* algorithms) {
  if (is_offline(context)) return plan_offline(graph, shape, context);
  auto list = plans_of(graph, shape, context, algorithms == nullptr);
  if (list->names.empty()) return nullptr;
  const auto planned = [&](std::size_t i) { return std::make_unique<CudnnConvolution>(list, i, shape, context); };
  // Of plans with reductions, which take cuDNN seconds to compile, the first is used.
  if (algorithms && !context.described && !list->has_reductions) {
    const std::size_t chosen = choose_by_time(list, graph, shape, context, *algorithms);
    if (list->built.size() > 1) list = plans_of(graph, shape, context, false, true);
    if (list->build(chosen)) return planned(chosen);
  }
  std::unique_ptr<CudnnConvolution> large;  // the first of those with a large workspace
  for (std::size_t i = 0; i < list->names.size(); ++i) {
    if (!list->build(i)) continue;
    auto convolution = planned(i);
    if (static_cast<std::int64_t>(convolution->workspace_bytes()) <= kWorkspaceLimit) return convolution;
    if (!large) large = std::move(convolution);
  }
  return large;
}

}  // namespace lockstep::cuda

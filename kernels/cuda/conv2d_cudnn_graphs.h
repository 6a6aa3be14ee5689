// Describes the graphs of conv2d_bare.h to cudnn-frontend: their tensors, and the operations between them.
// conv2d_cudnn.cpp alone includes this header, since the templates of cudnn-frontend take long to compile.
//
// Which graphs have plans was found by trying with cuDNN 9.19 for an H200 (test/golden/cuda_plans_*.txt): in fp16
// nearly all; in bf16 and tf32 the bare ones and statistics, which are reductions there; in fp32 the bare ones. Its
// engines require: scale and bias of the tensors' type and in the order MUL, ADD, RELU_FWD; statistics together with a
// normalisation; the recomputed z of a gradient as SUB, MUL, MUL, ADD; the residual as second operand of its ADD; all
// coefficients of dbn_weight as outputs.
#pragma once

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <memory>
#include <vector>

#include "kernels/cuda/base/cudnn_frontend.h"
#include "kernels/cuda/conv2d_bare.h"

namespace lockstep::cuda {

using fe::PointwiseMode_t;
using fe::graph::Graph;
using fe::graph::Tensor_attributes;
using Tensor = std::shared_ptr<Tensor_attributes>;
using Kind = ConvolutionGraph;

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

inline void* pointer_of(Role role, const ConvolutionTensors& t, const ConvolutionShape& shape) {
  // Each array is the one of its first role, and those that follow have further parts of it.
  struct Array {
    Role first;
    const void* data;
    std::int64_t part_bytes = 0;
  };
  const std::int64_t io_bytes = static_cast<std::int64_t>(size_bytes(shape.dtype)) * shape.x[3];
  const std::int64_t c_bytes = shape.x[3] * std::int64_t{sizeof(float)};
  const std::int64_t k_bytes = shape.out_channels * std::int64_t{sizeof(float)};
  const Array arrays[] = {{Role::x, t.x},
                          {Role::weight, t.weight},
                          {Role::y, t.y},
                          {Role::sum, t.statistics, k_bytes},
                          {Role::scale, t.scale_bias, io_bytes},
                          {Role::residual, t.residual},
                          {Role::residual_scale, t.residual_scale_bias, io_bytes},
                          {Role::z, t.z},
                          {Role::dy, t.dy},
                          {Role::dx, t.dx},
                          {Role::added, t.added},
                          {Role::dweight, t.dweight},
                          {Role::mean, t.mean_inverse_stddev, c_bytes},
                          {Role::gamma, t.gamma},
                          {Role::beta, t.beta},
                          {Role::dz_sum, t.sums, c_bytes},
                          {Role::unused_a, t.unused, c_bytes},
                          {Role::residual_mean, t.residual_mean_inverse_stddev, c_bytes},
                          {Role::residual_gamma, t.residual_gamma},
                          {Role::residual_beta, t.residual_beta},
                          {Role::residual_dz_sum, t.residual_sums, c_bytes},
                          {Role::residual_unused_a, t.residual_unused, c_bytes}};
  const Array& array = *std::prev(std::ranges::upper_bound(arrays, role, {}, &Array::first));
  const auto part = static_cast<std::int64_t>(role) - static_cast<std::int64_t>(array.first);
  return const_cast<char*>(static_cast<const char*>(array.data)) + part * array.part_bytes;
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
  Dims weight_dims() const { return {shape_.out_channels, shape_.x[3], shape_.kernel_size, shape_.kernel_size}; }

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

inline void GraphWriter::write(Kind kind) {
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

}  // namespace lockstep::cuda

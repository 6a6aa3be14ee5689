// What cuDNN does on a device (kernels/cuda/conv2d_bare.h), by plain loops in double, rounded to the tensors' type. The
// available fused graphs are those for which cuDNN 9.19 has plans on an H200, so the tests cover every level of the
// unit.
#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/cuda/base/numbers.h"
#include "kernels/cuda/conv2d_bare.h"
#include "kernels/cuda/conv2d_offline.h"
#include "test/support/cuda_on_host/launches.h"

namespace lockstep::cuda {
namespace {

using Graph = ConvolutionGraph;
using Index = std::int64_t;
using Numbers = std::vector<double>;

Numbers read(DType dtype, const void* source, Index n) {
  Numbers values(static_cast<std::size_t>(n));
  dispatch(dtype, [&](auto* type) {
    const auto* typed = static_cast<const std::remove_pointer_t<decltype(type)>*>(source);
    for (Index i = 0; i < n; ++i) values[static_cast<std::size_t>(i)] = to_float(typed[i]);
  });
  return values;
}
/// Also rounds `values`.
void write(DType dtype, Numbers& values, void* target) {
  dispatch(dtype, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    for (std::size_t i = 0; i < values.size(); ++i) {
      const T rounded = from_float<T>(static_cast<float>(values[i]));
      static_cast<T*>(target)[i] = rounded;
      values[i] = to_float(rounded);
    }
  });
}

// Whole networks spend nearly all of their time here. Sanitizers run before the functions that choose a clone.
#if defined(__x86_64__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define FOR_EACH_PROCESSOR __attribute__((target_clones("default", "arch=haswell", "arch=skylake-avx512")))
#else
#define FOR_EACH_PROCESSOR
#endif

FOR_EACH_PROCESSOR double dot(const double* a, const double* b, Index n) {
  double sum = 0;
#pragma omp simd reduction(+ : sum)
  for (Index i = 0; i < n; ++i) sum += a[i] * b[i];
  return sum;
}
FOR_EACH_PROCESSOR void add_product(double factor, const double* values, double* sums, Index n) {
#pragma omp simd
  for (Index i = 0; i < n; ++i) sums[i] += factor * values[i];
}

/// Calls f(pixel of x, pixel of y, r, s) for all pairs that a tap of the window joins.
template <typename F>
void for_each_pair(const ConvolutionShape& s, F&& f) {
  const Shape y = s.y();
  for (Index n = 0; n < y[0]; ++n)
    for (Index p = 0; p < y[1]; ++p)
      for (Index q = 0; q < y[2]; ++q)
        for (Index r = 0; r < s.window; ++r)
          for (Index t = 0; t < s.window; ++t) {
            const Index h = p * s.stride + r - s.padding, w = q * s.stride + t - s.padding;
            if (h >= 0 && h < s.x[1] && w >= 0 && w < s.x[2])
              f((n * s.x[1] + h) * s.x[2] + w, (n * y[1] + p) * y[2] + q, r * s.window + t);
          }
}

class HostConvolution final : public PlannedConvolution {
 public:
  HostConvolution(Graph graph, const ConvolutionShape& shape)
      : graph_(graph),
        s_(shape),
        c_(shape.x[3]),
        k_(shape.out_channels),
        taps_(Index{shape.window} * shape.window),
        n_x_(shape.x.n_elements()),
        n_y_(shape.y().n_elements()),
        n_weight_(k_ * taps_ * c_) {}

  std::size_t workspace_bytes() const override { return 4; }
  std::string plan() const override { return "loops"; }
  std::size_t n_plans() const override { return 1; }

  void run(const ConvolutionTensors& t, void* workspace, Stream&) override {
    cuda_fibers::record_call(std::string("cudnn ") + name(graph_));
    *static_cast<float*>(workspace) = NAN;  // it is there
    switch (graph_) {
      case Graph::forward:
      case Graph::forward_statistics:
        return forward(t, read(s_.dtype, t.x, n_x_));
      case Graph::normalized_forward:
        return forward(t, normalized(t));
      case Graph::residual_forward:
      case Graph::normalized_residual_forward: {
        Numbers z = normalized(t);
        write(s_.dtype, z, t.z);
        return forward(t, z);
      }
      case Graph::weight_gradient:
        return weight_gradient(t, read(s_.dtype, t.x, n_x_));
      case Graph::normalized_weight_gradient:
        return weight_gradient(t, normalized(t));
      case Graph::data_gradient: {
        Numbers dx = data_gradient(t);
        return write(s_.dtype, dx, t.dx);
      }
      default:
        return normalized_data_gradient(t);
    }
  }

 private:
  /// z, rounded like the tensor that a graph would store.
  Numbers normalized(const ConvolutionTensors& t) const {
    const Numbers x = read(s_.dtype, t.x, n_x_), factors = read(s_.dtype, t.scale_bias, 2 * c_);
    const bool has_residual = graph_ == Graph::residual_forward || graph_ == Graph::normalized_residual_forward;
    Numbers r, residual_factors;
    if (has_residual) r = read(s_.dtype, t.residual, n_x_);
    if (graph_ == Graph::normalized_residual_forward) residual_factors = read(s_.dtype, t.residual_scale_bias, 2 * c_);
    Numbers z(x.size());
    for (std::size_t i = 0; i < x.size(); ++i) {
      const std::size_t c = i % static_cast<std::size_t>(c_), bias = c + static_cast<std::size_t>(c_);
      double value = factors[c] * x[i] + factors[bias];
      if (has_residual) value += residual_factors.empty() ? r[i] : residual_factors[c] * r[i] + residual_factors[bias];
      z[i] = std::max(value, 0.0);
    }
    std::vector<char> rounded(z.size() * size_bytes(s_.dtype));
    write(s_.dtype, z, rounded.data());
    return z;
  }

  void forward(const ConvolutionTensors& t, const Numbers& z) const {
    const Numbers weight = read(s_.dtype, t.weight, n_weight_);
    Numbers y(static_cast<std::size_t>(n_y_));
    for_each_pair(s_, [&](Index x_row, Index y_row, Index tap) {
      for (Index k = 0; k < k_; ++k)
        y[static_cast<std::size_t>(y_row * k_ + k)] +=
            dot(z.data() + x_row * c_, weight.data() + (k * taps_ + tap) * c_, c_);
    });
    if (ends_in_reductions(graph_, s_)) write(s_.dtype, y, t.y);  // statistics are those of the stored y
    if (graph_ != Graph::forward) {
      Numbers sums(static_cast<std::size_t>(2 * k_));
      for (std::size_t i = 0; i < y.size(); ++i) {
        const std::size_t k = i % static_cast<std::size_t>(k_);
        sums[k] += y[i];
        sums[static_cast<std::size_t>(k_) + k] += y[i] * y[i];
      }
      write(DType::fp32, sums, t.statistics);
    }
    write(s_.dtype, y, t.y);
  }

  Numbers data_gradient(const ConvolutionTensors& t) const {
    const Numbers weight = read(s_.dtype, t.weight, n_weight_), dy = read(s_.dtype, t.dy, n_y_);
    Numbers dx(static_cast<std::size_t>(n_x_));
    for_each_pair(s_, [&](Index x_row, Index y_row, Index tap) {
      for (Index k = 0; k < k_; ++k)
        add_product(dy[static_cast<std::size_t>(y_row * k_ + k)], weight.data() + (k * taps_ + tap) * c_,
                    dx.data() + x_row * c_, c_);
    });
    return dx;
  }

  void weight_gradient(const ConvolutionTensors& t, const Numbers& z) const {
    const Numbers dy = read(s_.dtype, t.dy, n_y_);
    Numbers dweight(static_cast<std::size_t>(n_weight_));
    for_each_pair(s_, [&](Index x_row, Index y_row, Index tap) {
      for (Index k = 0; k < k_; ++k)
        add_product(dy[static_cast<std::size_t>(y_row * k_ + k)], z.data() + x_row * c_,
                    dweight.data() + (k * taps_ + tap) * c_, c_);
    });
    write(s_.dtype, dweight, t.dweight);
  }

  struct Norm {
    Numbers x;
    const float *mean_inverse_stddev, *gamma, *beta;
    Index channels;
    double x_hat(std::size_t i) const {
      const Index c = static_cast<Index>(i) % channels;
      return (x[i] - mean_inverse_stddev[c]) * mean_inverse_stddev[channels + c];
    }
    double z(std::size_t i) const {
      const Index c = static_cast<Index>(i) % channels;
      return x_hat(i) * gamma[c] + beta[c];
    }
    void sum(const Numbers& dz, float* sums, float* unused) const {
      Numbers both(static_cast<std::size_t>(2 * channels));
      for (std::size_t i = 0; i < dz.size(); ++i) {
        const std::size_t c = i % static_cast<std::size_t>(channels);
        both[c] += dz[i];
        both[c + static_cast<std::size_t>(channels)] += dz[i] * x_hat(i);
      }
      write(DType::fp32, both, sums);
      std::fill_n(unused, 3 * channels, NAN);
    }
  };

  void normalized_data_gradient(const ConvolutionTensors& t) const {
    Numbers dz = data_gradient(t);
    Numbers added, residual;
    if (graph_ != Graph::normalized_data_gradient) added = read(s_.dtype, t.added, n_x_);
    const Norm norm{read(s_.dtype, t.x, n_x_), t.mean_inverse_stddev, t.gamma, t.beta, c_};
    if (t.residual && graph_ == Graph::residual_data_gradient_added) residual = read(s_.dtype, t.residual, n_x_);
    const bool two = graph_ == Graph::normalized_residual_data_gradient_added;
    const Norm other{two ? read(s_.dtype, t.residual, n_x_) : Numbers{}, t.residual_mean_inverse_stddev,
                     t.residual_gamma, t.residual_beta, c_};
    for (std::size_t i = 0; i < dz.size(); ++i) {
      double z = norm.z(i);
      if (!residual.empty()) z += residual[i];
      if (two) z += other.z(i);
      if (!added.empty()) dz[i] += added[i];
      if (z <= 0) dz[i] = 0;
    }
    write(s_.dtype, dz, t.dx);
    norm.sum(dz, t.sums, t.unused);
    if (two) other.sum(dz, t.residual_sums, t.residual_unused);
  }

  Graph graph_;
  ConvolutionShape s_;
  Index c_, k_, taps_, n_x_, n_y_, n_weight_;
};

}  // namespace

std::size_t count_plans(ConvolutionGraph graph, const ConvolutionShape& shape, const CudaContext& context,
                        const Algorithms*) {
  return has_plan_offline(graph, shape, context.compute_capability) ? 1 : 0;
}

std::unique_ptr<PlannedConvolution> plan_convolution(ConvolutionGraph graph, const ConvolutionShape& shape,
                                                     const CudaContext& context, Algorithms*) {
  if (!has_plan_offline(graph, shape, context.compute_capability)) return nullptr;
  return std::make_unique<HostConvolution>(graph, shape);
}

std::string convolution_device(const CudaContext&) { return "host"; }

}  // namespace lockstep::cuda

// What cuDNN does on a device (kernels/cuda/conv2d_bare.h), as plain loops in double, rounded to the tensors' type. The
// available fused graphs are those for which cuDNN 9.19 has plans on an H200, so that the tests cover every level of
// the unit.
#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "kernels/cuda/base/numbers.h"
#include "kernels/cuda/conv2d_bare.h"
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
/// Writes `values` to `target`, and also rounds them in place.
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

// Whole networks spend nearly all of their time here. With sanitizers there are no clones, since their code would run
// before the functions that choose a clone.
#if defined(__x86_64__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define FOR_EACH_PROCESSOR __attribute__((target_clones("default", "arch=haswell", "arch=skylake-avx512")))
#else
#define FOR_EACH_PROCESSOR
#endif

constexpr Index kTogether = 4;
/// sums[j] += sum over i of a[i] * b[j * stride + i], for kTogether rows of b, so that a is read once for all of them.
FOR_EACH_PROCESSOR void add_dots(const double* a, const double* b, Index stride, Index n, double* sums) {
  double s0 = 0, s1 = 0, s2 = 0, s3 = 0;
#pragma omp simd reduction(+ : s0, s1, s2, s3)
  for (Index i = 0; i < n; ++i) {
    s0 += a[i] * b[i];
    s1 += a[i] * b[stride + i];
    s2 += a[i] * b[2 * stride + i];
    s3 += a[i] * b[3 * stride + i];
  }
  sums[0] += s0;
  sums[1] += s1;
  sums[2] += s2;
  sums[3] += s3;
}
FOR_EACH_PROCESSOR void add_dot(const double* a, const double* b, Index n, double& total) {
  double sum = 0;
#pragma omp simd reduction(+ : sum)
  for (Index i = 0; i < n; ++i) sum += a[i] * b[i];
  total += sum;
}
/// sums[i] += sum over j of factors[j] * rows[j][i]. The sums are read and written only once for all rows.
using Factors = std::array<double, kTogether>;
using Rows = std::array<const double*, kTogether>;
FOR_EACH_PROCESSOR void add_products(const Factors& factors, const Rows& rows, double* sums, Index n) {
  const double f0 = factors[0], f1 = factors[1], f2 = factors[2], f3 = factors[3];
  const double *r0 = rows[0], *r1 = rows[1], *r2 = rows[2], *r3 = rows[3];
#pragma omp simd
  for (Index i = 0; i < n; ++i) sums[i] += f0 * r0[i] + f1 * r1[i] + f2 * r2[i] + f3 * r3[i];
}
FOR_EACH_PROCESSOR void add_product(double factor, const double* row, double* sums, Index n) {
#pragma omp simd
  for (Index i = 0; i < n; ++i) sums[i] += factor * row[i];
}

/// A row of x and a row of y. Rows are pixels.
struct Pair {
  Index x, y;
};
/// All pairs that one tap of the window connects.
std::vector<Pair> pairs_of(Index tap, const ConvolutionShape& s) {
  const Shape y = s.y();
  const Index r = tap / s.kernel_size, t = tap % s.kernel_size;
  std::vector<Pair> pairs;
  for (Index n = 0; n < y[0]; ++n)
    for (Index p = 0; p < y[1]; ++p)
      for (Index q = 0; q < y[2]; ++q) {
        const Index h = p * s.stride + r - s.padding, w = q * s.stride + t - s.padding;
        if (h >= 0 && h < s.x[1] && w >= 0 && w < s.x[2])
          pairs.push_back({(n * s.x[1] + h) * s.x[2] + w, (n * y[1] + p) * y[2] + q});
      }
  return pairs;
}

class HostConvolution final : public PlannedConvolution {
 public:
  HostConvolution(Graph graph, const ConvolutionShape& shape)
      : graph_(graph),
        s_(shape),
        c_(shape.x[3]),
        k_(shape.out_channels),
        taps_(Index{shape.kernel_size} * shape.kernel_size),
        n_x_(shape.x.n_elements()),
        n_y_(shape.y().n_elements()),
        n_weight_(k_ * taps_ * c_) {}

  std::size_t workspace_bytes() const override { return 4; }
  std::string plan() const override { return "loops"; }
  std::size_t n_plans() const override { return 1; }

  void run(const ConvolutionTensors& t, void* workspace, Stream&) override {
    cuda_fibers::record_call(std::string("cudnn ") + name(graph_), workspace);
    *static_cast<float*>(workspace) = NAN;  // checks that the workspace exists
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
  /// Calls f(tap, its pairs, first, last) for blocks of output channels whose weights fit into the cache.
  template <typename F>
  void for_each_block(F&& f) const {
    constexpr Index kBlock = 8;
    for (Index tap = 0; tap < taps_; ++tap) {
      const std::vector<Pair> pairs = pairs_of(tap, s_);
      for (Index first = 0; first < k_; first += kBlock) f(tap, pairs, first, std::min(first + kBlock, k_));
    }
  }

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
    for_each_block([&](Index tap, const std::vector<Pair>& pairs, Index first, Index last) {
      for (const Pair pair : pairs) {
        const double* row = z.data() + pair.x * c_;
        double* sums = y.data() + pair.y * k_;
        Index k = first;
        for (; k + kTogether <= last; k += kTogether)
          add_dots(row, weight.data() + (k * taps_ + tap) * c_, taps_ * c_, c_, sums + k);
        for (; k < last; ++k) add_dot(row, weight.data() + (k * taps_ + tap) * c_, c_, sums[k]);
      }
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
    for_each_block([&](Index tap, const std::vector<Pair>& pairs, Index first, Index last) {
      const auto row = [&](Index k) { return weight.data() + (k * taps_ + tap) * c_; };
      for (const Pair pair : pairs) {
        const double* f = dy.data() + pair.y * k_;
        double* sums = dx.data() + pair.x * c_;
        Index k = first;
        for (; k + kTogether <= last; k += kTogether)
          add_products({f[k], f[k + 1], f[k + 2], f[k + 3]}, {row(k), row(k + 1), row(k + 2), row(k + 3)}, sums, c_);
        for (; k < last; ++k) add_product(f[k], row(k), sums, c_);
      }
    });
    return dx;
  }

  void weight_gradient(const ConvolutionTensors& t, const Numbers& z) const {
    const Numbers dy = read(s_.dtype, t.dy, n_y_);
    Numbers dweight(static_cast<std::size_t>(n_weight_));
    for_each_block([&](Index tap, const std::vector<Pair>& pairs, Index first, Index last) {
      const Index n = static_cast<Index>(pairs.size());
      const auto row = [&](Index i) { return z.data() + pairs[static_cast<std::size_t>(i)].x * c_; };
      const auto factor = [&](Index i, Index k) {
        return dy[static_cast<std::size_t>(pairs[static_cast<std::size_t>(i)].y * k_ + k)];
      };
      const auto sums = [&](Index k) { return dweight.data() + (k * taps_ + tap) * c_; };
      Index i = 0;
      for (; i + kTogether <= n; i += kTogether)
        for (Index k = first; k < last; ++k)
          add_products({factor(i, k), factor(i + 1, k), factor(i + 2, k), factor(i + 3, k)},
                       {row(i), row(i + 1), row(i + 2), row(i + 3)}, sums(k), c_);
      for (; i < n; ++i)
        for (Index k = first; k < last; ++k) add_product(factor(i, k), row(i), sums(k), c_);
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

std::size_t count_plans(ConvolutionGraph graph, const ConvolutionShape& shape, const CudaContext& context) {
  return has_plan_offline(graph, shape, context.compute_capability) ? 1 : 0;
}

std::unique_ptr<PlannedConvolution> plan_convolution(ConvolutionGraph graph, const ConvolutionShape& shape,
                                                     const CudaContext& context) {
  if (!has_plan_offline(graph, shape, context.compute_capability)) return nullptr;
  return std::make_unique<HostConvolution>(graph, shape);
}

std::string convolution_device(const CudaContext&) { return "host"; }

}  // namespace lockstep::cuda

// The CUDA backend's passes of a pending normalisation, one at a time and compiled for the host: compared with sums in
// double, for every element type, for channel counts that do not fill a pack, and for memory that is not aligned to a
// pack.
// timeout: 240
#ifdef LOCKSTEP_CUDA
#define cuda cuda_on_host
#include "kernels/cuda/normalization.h"
#undef cuda

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "lockstep/ops/normalization.h"
#include "test/support/compare.h"
#include "test/support/device.h"
#include "test/support/sanitizers.h"
#include "test/support/tensor.h"

namespace lockstep::cuda_on_host {
namespace {

using Residual = InputNormalization::Residual;
using test::Device;

const CudaContext kContext{.device = 0, .multiprocessors = 3, .compute_capability = 90};

struct Case {
  ActivationShape shape;
  bool aligned = true;
};

std::string text(const Case& c) {
  return std::to_string(c.shape.rows) + "x" + std::to_string(c.shape.c) + " " + std::string(name(c.shape.dtype)) +
         (c.aligned ? "" : ", not aligned");
}

// A program with sanitizers is many times slower. It tests only sizes that do not fill a pack, that are one pack, and
// that exceed a block.
using Sizes = std::vector<std::int64_t>;
Sizes channels() {
  return test::has_address_sanitizer() ? Sizes{1, 8, 17, 264} : Sizes{1, 3, 8, 12, 16, 17, 48, 64, 65, 264, 520};
}
Sizes rows() { return test::has_address_sanitizer() ? Sizes{1, 105} : Sizes{1, 7, 105}; }

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const DType dtype : {DType::fp32, DType::bf16, DType::fp16}) {
    for (const std::int64_t c : channels())
      for (const std::int64_t n_rows : rows()) all.push_back({{n_rows, c, dtype}});
    all.push_back({{3000, 16, dtype}});  // more than one round of the grid
    all.push_back({{2001, 5, dtype}});
    all.push_back({{105, 16, dtype}, false});
  }
  return all;
}

/// Tensors as on a device: there are 16 bytes of padding before each, or a few less so that packs cannot be read.
class Tensor {
 public:
  Tensor(Device& device, const Case& c, const std::vector<float>& values) : device_(&device), c_(c), n_(values.size()) {
    auto* base = static_cast<unsigned char*>(device.garbage_as(c.shape.dtype, n_ + 16));
    data_ = base + (c.aligned ? 16 : size_bytes(c.shape.dtype));
    const void* converted = device.upload_as(c.shape.dtype, values);
    device.backend().copy(data_, converted, n_ * size_bytes(c.shape.dtype), device.stream());
  }
  void* data() const { return data_; }
  std::vector<float> values() const { return device_->download_as(c_.shape.dtype, data_, n_); }

 private:
  Device* device_;
  Case c_;
  std::size_t n_;
  void* data_;
};

struct Inputs {
  explicit Inputs(const ActivationShape& shape)
      : c(static_cast<std::size_t>(shape.c)),
        x(values(shape, 1, 3)),
        residual(values(shape, 2)),
        data_gradient(values(shape, 3)),
        added(values(shape, 4)),
        scale_bias(test::random_uniform(2 * shape.c, 5, -1, 1)),
        residual_scale_bias(test::random_uniform(2 * shape.c, 6, -1, 1)),
        mean_inverse_stddev(test::random_uniform(2 * shape.c, 7, 1, 3)),
        residual_mean_inverse_stddev(test::random_uniform(2 * shape.c, 8, 1, 3)) {
    for (std::size_t i = 0; i < c; ++i) scale_bias[c + i] -= 3 * scale_bias[i];  // about half of z is positive
  }
  static std::vector<float> values(const ActivationShape& shape, std::uint32_t stream, double mean = 0) {
    return test::rounded_to(shape.dtype, test::random_uniform(shape.rows * shape.c, stream, mean - 1, mean + 1));
  }
  double before_activation(const InputNormalization& normalization, std::size_t i) const {
    const std::size_t k = i % c;
    double z = double{scale_bias[k]} * x[i] + scale_bias[c + k];
    if (normalization.residual == Residual::plain) z += residual[i];
    if (normalization.residual == Residual::normalized)
      z += double{residual_scale_bias[k]} * residual[i] + residual_scale_bias[c + k];
    return z;
  }
  NormalizationForward forward(const void* residual_data) const {
    NormalizationForward args;
    args.scale_bias = scale_bias.data();
    args.residual = residual_data;
    args.residual_scale_bias = residual_scale_bias.data();
    return args;
  }

  std::size_t c;
  std::vector<float> x, residual, data_gradient, added, scale_bias, residual_scale_bias, mean_inverse_stddev,
      residual_mean_inverse_stddev;
};

// Values are below 10 and go through at most four fp32 operations and one rounding to their type.
double element_tolerance(DType dtype) {
  const double stored = dtype == DType::bf16   ? test::kBf16Roundoff
                        : dtype == DType::fp16 ? test::kFp16Roundoff
                                               : test::kRoundoff;
  return 10 * (4 * test::kRoundoff + stored);
}

class CudaNormalization : public testing::Test {
 protected:
  std::unique_ptr<Backend> backend_ = test::make_cuda_on_host_backend();
};

TEST_F(CudaNormalization, ForwardAgreesWithTheFormula) {
  for (const Case& c : cases())
    for (const Residual residual : {Residual::none, Residual::plain, Residual::normalized})
      for (const bool relu : {false, true}) {
        SCOPED_TRACE(text(c));
        Device device(*backend_);
        const Inputs in(c.shape);
        const InputNormalization normalization{.residual = residual, .relu = relu};
        const Tensor x(device, c, in.x), r(device, c, in.residual);
        const Tensor& z = relu ? x : r;  // in place
        normalize(c.shape, normalization, x.data(), in.forward(r.data()), z.data(), kContext, device.stream());
        const std::vector<float> actual = z.values();
        double worst = 0;
        for (std::size_t i = 0; i < actual.size(); ++i) {
          double expected = in.before_activation(normalization, i);
          if (relu && expected < 0) expected = 0;
          worst = std::fmax(worst, std::fabs(expected - actual[i]));
        }
        ASSERT_LE(worst, element_tolerance(c.shape.dtype));
      }
}

TEST_F(CudaNormalization, SumsAgreeWithDouble) {
  for (const Case& c : cases()) {
    SCOPED_TRACE(text(c));
    Device device(*backend_);
    const Inputs in(c.shape);
    std::vector<double> expected(2 * in.c), magnitude(2 * in.c);
    for (std::size_t i = 0; i < in.x.size(); ++i) {
      const double x = in.x[i];
      expected[i % in.c] += x;
      expected[in.c + i % in.c] += x * x;
    }
    const Tensor x(device, c, in.x);
    std::vector<double> sums(2 * in.c), again(2 * in.c);
    void* workspace = device.garbage<unsigned char>(channel_sums_workspace_bytes(c.shape, kContext));
    channel_sums(c.shape, x.data(), sums.data(), workspace, kContext, device.stream());
    channel_sums(c.shape, x.data(), again.data(), workspace, kContext, device.stream());
    // Sums of eight rows in fp32; differences from the first element are at most as large as the elements.
    EXPECT_TRUE(test::within_rounding(sums, expected, expected, 10));
    EXPECT_EQ(sums, again);
  }
}

/// The variance of numbers far from zero, computed from sums of x and x^2: the subtracted term is a million times as
/// large.
TEST_F(CudaNormalization, VarianceSurvivesALargeMean) {
  const Case c{{4000, 8, DType::fp32}};
  Device device(*backend_);
  std::vector<float> values = test::random_normal(c.shape.rows * c.shape.c, 11);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = i % 8 == 0 ? 1000.1f : 1000.0f + values[i];
  const Tensor x(device, c, values);
  std::vector<double> sums(16);
  void* workspace = device.garbage<unsigned char>(channel_sums_workspace_bytes(c.shape, kContext));
  channel_sums(c.shape, x.data(), sums.data(), workspace, kContext, device.stream());
  for (std::size_t k = 0; k < 8; ++k) {
    double mean = 0, deviations = 0;
    for (std::size_t i = k; i < values.size(); i += 8) mean += values[i] / 4000.0;
    for (std::size_t i = k; i < values.size(); i += 8) deviations += (values[i] - mean) * (values[i] - mean);
    const double actual = sums[8 + k] - sums[k] * sums[k] / 4000.0;
    // fp64 contributes an error of 1e6 * 2^-53 per term, and fp32 the roundings of each deviation from the first
    // element.
    EXPECT_NEAR(actual, deviations, 4000 * 1e6 * 0x1p-52 + 40 * test::kRoundoff * deviations) << k;
  }
}

/// Where dz is written.
enum class Target { own, data_gradient, added };

struct BackwardCase {
  InputNormalization normalization;
  bool stored;  // z is given
  bool with_added;
  Target target;
};

void check_backward(Backend& backend, const Case& c, const BackwardCase& b, const Inputs& in) {
  Device device(backend);
  const std::size_t n = in.c;
  const Tensor x(device, c, in.x), residual(device, c, in.residual), data_gradient(device, c, in.data_gradient);
  const Tensor added(device, c, in.added), own(device, c, in.x), z(device, c, in.x);
  const NormalizationForward forward = in.forward(residual.data());
  normalize(c.shape, b.normalization, x.data(), forward, z.data(), kContext, device.stream());
  const std::vector<float> z_values = z.values();
  std::vector<double> expected_dz(in.x.size()), expected(3 * n);
  for (std::size_t i = 0; i < in.x.size(); ++i) {
    const std::size_t k = i % n;
    double dz = double{in.data_gradient[i]} + (b.with_added ? in.added[i] : 0.0f);
    if (b.normalization.relu && z_values[i] <= 0) dz = 0;
    expected_dz[i] = dz;
    expected[k] += dz;
    expected[n + k] += dz * (in.x[i] - double{in.mean_inverse_stddev[k]}) * in.mean_inverse_stddev[n + k];
    expected[2 * n + k] +=
        dz * (in.residual[i] - double{in.residual_mean_inverse_stddev[k]}) * in.residual_mean_inverse_stddev[n + k];
  }
  const Tensor& target = b.target == Target::own ? own : b.target == Target::added ? added : data_gradient;
  std::vector<double> sums(2 * n, NAN), residual_sums(2 * n, NAN);
  NormalizationBackward args;
  args.mean_inverse_stddev = in.mean_inverse_stddev.data();
  args.residual_mean_inverse_stddev = in.residual_mean_inverse_stddev.data();
  args.added = b.with_added ? added.data() : nullptr;
  args.dz = target.data();
  args.sums = sums.data();
  args.residual_sums = residual_sums.data();
  void* workspace = device.garbage<unsigned char>(normalize_backward_workspace_bytes(c.shape, kContext));
  normalize_backward(c.shape, b.normalization, x.data(), forward, b.stored ? z.data() : nullptr, data_gradient.data(),
                     args, workspace, kContext, device.stream());
  const std::vector<float> dz = target.values();
  double worst = 0;
  for (std::size_t i = 0; i < dz.size(); ++i) worst = std::fmax(worst, std::fabs(expected_dz[i] - dz[i]));
  ASSERT_LE(worst, element_tolerance(c.shape.dtype));
  // Ten fp32 roundings of terms below 2 * 4 * 3.
  const double tolerance = static_cast<double>(c.shape.rows) * 10 * 24 * test::kRoundoff;
  for (std::size_t k = 0; k < n; ++k) {
    ASSERT_NEAR(sums[k], expected[k], tolerance);
    ASSERT_NEAR(sums[n + k], expected[n + k], tolerance);
    if (b.normalization.residual != Residual::normalized) continue;
    ASSERT_EQ(residual_sums[k], sums[k]);
    ASSERT_NEAR(residual_sums[n + k], expected[2 * n + k], tolerance);
  }
}

TEST_F(CudaNormalization, BackwardMasksAddsAndSums) {
  for (const Case& c : cases()) {
    SCOPED_TRACE(text(c));
    const Inputs in(c.shape);
    for (const Residual residual : {Residual::none, Residual::plain, Residual::normalized})
      for (const bool stored : {false, true})
        for (const bool with_added : {false, true}) {
          const InputNormalization relu{.residual = residual, .relu = true},
              linear{.residual = residual, .relu = false};
          check_backward(*backend_, c, {relu, stored, with_added, with_added ? Target::added : Target::own}, in);
          check_backward(*backend_, c, {linear, stored, with_added, Target::data_gradient}, in);
          if (HasFatalFailure()) return;
        }
  }
}

TEST_F(CudaNormalization, AddInto) {
  for (const DType dtype : {DType::fp32, DType::bf16, DType::fp16})
    for (const std::int64_t n : {1, 7, 8, 100, 20003})
      for (const bool aligned : {true, false}) {
        const Case c{{n, 1, dtype}, aligned};
        SCOPED_TRACE(text(c));
        Device device(*backend_);
        const std::vector<float> a = Inputs::values(c.shape, 1), b = Inputs::values(c.shape, 2);
        const Tensor value(device, c, a), target(device, c, b);
        add_into({static_cast<std::size_t>(n), dtype}, value.data(), target.data(), kContext, device.stream());
        std::vector<float> expected(a.size());
        for (std::size_t i = 0; i < a.size(); ++i) expected[i] = a[i] + b[i];
        EXPECT_EQ(target.values(), test::rounded_to(dtype, expected));
      }
}

TEST_F(CudaNormalization, PropagatesNaN) {
  const ActivationShape shape{1, 16, DType::fp32};
  Device device(*backend_);
  Inputs in(shape);
  in.x[5] = std::nanf("");
  const Tensor x(device, {shape}, in.x);
  normalize(shape, {}, x.data(), in.forward(nullptr), x.data(), kContext, device.stream());
  EXPECT_TRUE(std::isnan(x.values()[5]));
  EXPECT_FALSE(std::isnan(x.values()[6]));
}

}  // namespace
}  // namespace lockstep::cuda_on_host
#endif

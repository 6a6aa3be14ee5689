// The passes of a pending normalisation, one at a time: compared with sums in double, in both layouts, for channel
// counts that do not fill a vector, for every instruction set of this processor, and with one and three threads.
#include "kernels/cpu/normalization.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "kernels/cpu/base/simd.h"
#include "lockstep/ops/normalization.h"
#include "lockstep/philox.h"

namespace lockstep::cpu {
namespace {

using Residual = InputNormalization::Residual;

struct Case {
  ActivationShape shape;
  Isa isa;
  int threads;
};

std::string text(const Case& c) {
  return (c.shape.layout == Layout::nhwc ? "nhwc " : "nchw16c ") + std::to_string(c.shape.n) + "x" +
         std::to_string(c.shape.hw) + "x" + std::to_string(c.shape.c) + ", instruction set " +
         std::to_string(static_cast<int>(c.isa)) + ", threads " + std::to_string(c.threads);
}

std::vector<Case> cases() {
  std::vector<ActivationShape> shapes;
  for (const std::int64_t c : {1, 3, 8, 16, 17, 48, 63, 64, 65, 100, 130})
    for (const std::int64_t hw : {1, 35}) shapes.push_back({3, hw, c, Layout::nhwc});
  for (const std::int64_t c : {16, 48})
    for (const std::int64_t hw : {1, 35}) shapes.push_back({3, hw, c, Layout::nchw16c});
  shapes.push_back({2, 1024, 64, Layout::nhwc});  // large enough for several threads
  shapes.push_back({2, 1024, 64, Layout::nchw16c});
  shapes.push_back({1, 20001, 5, Layout::nhwc});  // rows that do not fill a repetition
  std::vector<Case> out;
  for (const ActivationShape& shape : shapes)
    for (const Isa isa : {Isa::baseline, Isa::avx2, Isa::avx512})
      if (isa <= detect_isa())
        for (const int threads : {1, 3})
          if (threads == 1 || shape.n * shape.hw > 1000) out.push_back({shape, isa, threads});
  return out;
}

std::vector<float> random_values(std::int64_t n, std::uint32_t stream, double mean = 0) {
  const Philox philox(7, RandomPurpose::synthetic, stream, 0);
  std::vector<float> values(static_cast<std::size_t>(n));
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(mean + 2 * philox.uniform(i) - 1);
  return values;
}

/// The inputs of one case, and the channel of an element.
struct Inputs {
  explicit Inputs(const ActivationShape& shape)
      : shape(shape),
        x(random_values(n(), 1, 3)),
        residual(random_values(n(), 2)),
        data_gradient(random_values(n(), 3)),
        added(random_values(n(), 4)),
        scale_bias(random_values(2 * shape.c, 5)),
        residual_scale_bias(random_values(2 * shape.c, 6)),
        mean_inverse_stddev(random_values(2 * shape.c, 7, 2)),
        residual_mean_inverse_stddev(random_values(2 * shape.c, 8, 2)) {
    for (std::int64_t c = 0; c < shape.c; ++c)  // so that about half of z is positive
      scale_bias[static_cast<std::size_t>(shape.c + c)] -= 3 * scale_bias[static_cast<std::size_t>(c)];
  }
  std::int64_t n() const { return shape.n * shape.hw * shape.c; }
  std::size_t channel(std::int64_t i) const {
    if (shape.layout == Layout::nhwc) return static_cast<std::size_t>(i % shape.c);
    return static_cast<std::size_t>(i / (shape.hw * 16) % (shape.c / 16) * 16 + i % 16);
  }
  double before_activation(const InputNormalization& normalization, std::int64_t i) const {
    const std::size_t c = channel(i), e = static_cast<std::size_t>(i), n_channels = static_cast<std::size_t>(shape.c);
    double z = double{scale_bias[c]} * x[e] + scale_bias[n_channels + c];
    if (normalization.residual == Residual::plain) z += residual[e];
    if (normalization.residual == Residual::normalized)
      z += double{residual_scale_bias[c]} * residual[e] + residual_scale_bias[n_channels + c];
    return z;
  }
  NormalizationForward forward() const {
    NormalizationForward args;
    args.scale_bias = scale_bias.data();
    args.residual = residual.data();
    args.residual_scale_bias = residual_scale_bias.data();
    return args;
  }

  ActivationShape shape;
  std::vector<float> x, residual, data_gradient, added, scale_bias, residual_scale_bias, mean_inverse_stddev,
      residual_mean_inverse_stddev;
};

struct Workspace {
  explicit Workspace(std::size_t size_bytes) : bytes(size_bytes, '\x7f') {}  // contents must not matter
  std::vector<char> bytes;
  void* data() { return bytes.data(); }
};

// Values are below 10 and go through at most four fp32 operations: 4 * 10 * 2^-24, rounded up.
constexpr double kElementTolerance = 4e-6;
// Sums are in fp64, with at most 65,536 terms below 40.
constexpr double kSumTolerance = 1e-8;

class NormalizationTest : public ::testing::Test {
 protected:
  ~NormalizationTest() override { limit_isa(Isa::avx512); }
};

TEST_F(NormalizationTest, ForwardAgreesWithTheFormula) {
  for (const Case& c : cases()) {
    SCOPED_TRACE(text(c));
    limit_isa(c.isa);
    const Inputs in(c.shape);
    for (const Residual residual : {Residual::none, Residual::plain, Residual::normalized})
      for (const bool relu : {false, true}) {
        const InputNormalization normalization{.residual = residual, .relu = relu};
        std::vector<float> z(in.x.size());
        normalize(c.shape, normalization, in.x.data(), in.forward(), z.data(), {c.threads});
        double worst = 0;
        for (std::int64_t i = 0; i < in.n(); ++i) {
          double expected = in.before_activation(normalization, i);
          if (relu && expected < 0) expected = 0;
          worst = std::fmax(worst, std::fabs(expected - z[static_cast<std::size_t>(i)]));
        }
        ASSERT_LE(worst, kElementTolerance);
      }
  }
}

TEST_F(NormalizationTest, SumsAgreeWithDouble) {
  for (const Case& c : cases()) {
    SCOPED_TRACE(text(c));
    limit_isa(c.isa);
    const Inputs in(c.shape);
    const std::size_t n_channels = static_cast<std::size_t>(c.shape.c);
    std::vector<double> expected(2 * n_channels), sums(2 * n_channels, -1), again(2 * n_channels, -2);
    for (std::int64_t i = 0; i < in.n(); ++i) {
      const double x = in.x[static_cast<std::size_t>(i)];
      expected[in.channel(i)] += x;
      expected[n_channels + in.channel(i)] += x * x;
    }
    Workspace workspace(channel_sums_workspace_bytes(c.shape, {c.threads}));
    channel_sums(c.shape, in.x.data(), sums.data(), workspace.data(), {c.threads});
    channel_sums(c.shape, in.x.data(), again.data(), workspace.data(), {c.threads});
    for (std::size_t i = 0; i < sums.size(); ++i) ASSERT_NEAR(sums[i], expected[i], kSumTolerance * expected[i]);
    ASSERT_EQ(sums, again);
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

void check_backward(const Case& c, const BackwardCase& b, Inputs in) {
  const std::size_t n_channels = static_cast<std::size_t>(c.shape.c);
  std::vector<float> z(in.x.size()), own(in.x.size());
  normalize(c.shape, b.normalization, in.x.data(), in.forward(), z.data(), {c.threads});
  std::vector<double> expected_dz(in.x.size()), expected(4 * n_channels), sums(2 * n_channels),
      residual_sums(2 * n_channels);
  for (std::int64_t i = 0; i < in.n(); ++i) {
    const std::size_t e = static_cast<std::size_t>(i), k = in.channel(i);
    double dz = double{in.data_gradient[e]} + (b.with_added ? in.added[e] : 0.0f);
    if (b.normalization.relu && z[e] <= 0) dz = 0;
    expected_dz[e] = dz;
    expected[k] += dz;
    expected[n_channels + k] +=
        dz * (in.x[e] - double{in.mean_inverse_stddev[k]}) * in.mean_inverse_stddev[n_channels + k];
    expected[2 * n_channels + k] += dz * (in.residual[e] - double{in.residual_mean_inverse_stddev[k]}) *
                                    in.residual_mean_inverse_stddev[n_channels + k];
  }
  std::vector<float>& target = b.target == Target::own ? own : b.target == Target::added ? in.added : in.data_gradient;
  NormalizationBackward args;
  args.mean_inverse_stddev = in.mean_inverse_stddev.data();
  args.residual_mean_inverse_stddev = in.residual_mean_inverse_stddev.data();
  args.added = b.with_added ? in.added.data() : nullptr;
  args.dz = target.data();
  args.sums = sums.data();
  args.residual_sums = residual_sums.data();
  Workspace workspace(normalize_backward_workspace_bytes(c.shape, {c.threads}));
  normalize_backward(c.shape, b.normalization, in.x.data(), in.forward(), b.stored ? z.data() : nullptr,
                     in.data_gradient.data(), args, workspace.data(), {c.threads});
  double worst = 0;
  for (std::size_t i = 0; i < target.size(); ++i) worst = std::fmax(worst, std::fabs(expected_dz[i] - target[i]));
  ASSERT_LE(worst, kElementTolerance);
  // dz is rounded to fp32 before it is summed: an error of 2^-24 of at most 2, times a factor of up to 12, for each
  // row.
  const double tolerance = static_cast<double>(c.shape.n * c.shape.hw) * 1.5e-6;
  for (std::size_t k = 0; k < n_channels; ++k) {
    ASSERT_NEAR(sums[k], expected[k], tolerance);
    ASSERT_NEAR(sums[n_channels + k], expected[n_channels + k], tolerance);
    if (b.normalization.residual != Residual::normalized) continue;
    ASSERT_EQ(residual_sums[k], sums[k]);
    ASSERT_NEAR(residual_sums[n_channels + k], expected[2 * n_channels + k], tolerance);
  }
}

TEST_F(NormalizationTest, BackwardMasksAddsAndSums) {
  for (const Case& c : cases()) {
    SCOPED_TRACE(text(c));
    limit_isa(c.isa);
    const Inputs in(c.shape);
    for (const Residual residual : {Residual::none, Residual::plain, Residual::normalized})
      for (const bool stored : {false, true})
        for (const bool with_added : {false, true}) {
          check_backward(c, {{.residual = residual, .relu = true}, stored, with_added, Target::own}, in);
          check_backward(c, {{.residual = residual, .relu = false}, stored, with_added, Target::data_gradient}, in);
          if (with_added) check_backward(c, {{.residual = residual, .relu = true}, stored, true, Target::added}, in);
          if (::testing::Test::HasFatalFailure()) return;
        }
  }
}

TEST_F(NormalizationTest, PropagatesNaN) {
  for (const Isa isa : {Isa::baseline, Isa::avx2, Isa::avx512}) {
    limit_isa(isa);
    const ActivationShape shape{1, 1, 64, Layout::nhwc};
    Inputs in(shape);
    in.x[5] = std::nanf("");
    normalize(shape, {}, in.x.data(), in.forward(), in.x.data(), {1});  // in place
    EXPECT_TRUE(std::isnan(in.x[5]));
    EXPECT_FALSE(std::isnan(in.x[6]));
  }
}

}  // namespace
}  // namespace lockstep::cpu

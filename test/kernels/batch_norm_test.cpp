// Batch norm of each backend, compared with the reference; the reference, including statistics, compared with finite
// differences.
#include "test/reference/batch_norm.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>

#include "lockstep/ops/batch_norm.h"
#include "test/reference/backend.h"
#include "test/support/compare.h"
#include "test/support/device.h"
#include "test/support/finite_difference.h"
#include "test/support/tensor.h"

namespace lockstep::test {
namespace {

const Shape kCases[] = {{2, 8, 8, 16}, {1, 7, 5, 3}, {3, 3, 3, 13}, {1, 2, 1, 64}, {5, 4, 4, 33}, {2, 1, 1, 48}};

BatchNormDescription describe(const Shape& x, double ranks = 1) {
  BatchNormDescription d;
  d.x = x;
  d.n_rows = ranks * static_cast<double>(x[0] * x[1] * x[2]);
  return d;
}

/// x, with means and standard deviations that differ between channels.
struct Inputs {
  explicit Inputs(const Shape& shape)
      : x(random_normal(shape.n_elements(), 1)),
        dz(random_normal(shape.n_elements(), 2)),
        gamma(random_uniform(shape[3], 3, -1.5, 1.5)),
        beta(random_normal(shape[3], 4)),
        before(random_normal(2 * shape[3], 5)),
        statistics(static_cast<std::size_t>(2 * shape[3])) {
    for (std::size_t i = 0; i < x.size(); ++i) {
      const std::size_t c = i % gamma.size();
      x[i] = x[i] * (0.5f + static_cast<float>(c % 5)) + static_cast<float>(c % 3);
    }
    reference::batch_norm_statistics(shape, x.data(), statistics.data());
  }
  std::vector<float> x, dz, gamma, beta, before;
  std::vector<double> statistics;
};

struct Finalized {
  std::vector<float> scale_bias, mean_inverse_stddev, batch_statistics;
};

Finalized finalize(Backend& backend, const BatchNormDescription& d, const Inputs& in, GradientMode mode) {
  Device device(backend);
  const auto op = backend.make(d);
  const std::size_t n = in.statistics.size();
  BatchNorm::Finalize args;
  args.statistics = device.upload(in.statistics);
  args.gamma = device.upload(in.gamma);
  args.beta = device.upload(in.beta);
  args.scale_bias = device.garbage<float>(n);
  args.mean_inverse_stddev = device.garbage<float>(n);
  args.batch_statistics_weight = 0.25f;
  args.batch_statistics_mode = mode;
  if (mode == GradientMode::overwrite) args.batch_statistics = device.garbage<float>(n);
  if (mode == GradientMode::accumulate) args.batch_statistics = device.upload(in.before);
  op->finalize(args, device.op_memory(op->memory_requirements()), device.stream());
  Finalized out{device.download(args.scale_bias, n), device.download(args.mean_inverse_stddev, n), {}};
  if (args.batch_statistics) out.batch_statistics = device.download(args.batch_statistics, n);
  return out;
}

TEST(BatchNorm, FinalizeAgreesWithTheReference) {
  reference::ReferenceBackend reference;
  for (const Shape& shape : kCases)
    for (GradientMode mode : {GradientMode::skip, GradientMode::overwrite, GradientMode::accumulate}) {
      const Inputs in(shape);
      const BatchNormDescription d = describe(shape);
      const Finalized expected = finalize(reference, d, in, mode);
      for (auto& [name, backend] : tested_backends()) {
        SCOPED_TRACE(std::string(name) + ", x " + shape.text() + ", batch statistics " + text(mode));
        const Finalized actual = finalize(*backend, d, in, mode);
        // A few roundings each. bias is a difference, so it is compared relative to the maximum over the channels.
        EXPECT_TRUE(near(actual.scale_bias, expected.scale_bias, 1e-6));
        EXPECT_TRUE(near(actual.mean_inverse_stddev, expected.mean_inverse_stddev, 1e-6));
        EXPECT_TRUE(near(actual.batch_statistics, expected.batch_statistics, 1e-6));
      }
    }
}

/// A constant channel has variance 0, which rounding must not make negative: the result is 1 / sqrt(epsilon), never
/// NaN.
TEST(BatchNorm, ConstantChannel) {
  const Shape shape{3, 5, 7, 16};
  Inputs in(shape);
  for (float& x : in.x) x = 1000.1f;
  reference::batch_norm_statistics(shape, in.x.data(), in.statistics.data());
  for (auto& [name, backend] : tested_backends()) {
    const Finalized out = finalize(*backend, describe(shape), in, GradientMode::overwrite);
    // Cancellation in fp64 leaves about 1000^2 * 2^-52 = 2e-10 of variance, compared to epsilon = 1e-5.
    for (std::size_t c = 16; c < 32; ++c) EXPECT_NEAR(out.mean_inverse_stddev[c], 316.2278f, 0.1f) << name;
    for (std::size_t c = 16; c < 32; ++c) EXPECT_NEAR(out.batch_statistics[c], 0.0f, 1e-6f) << name;
  }
}

/// Means that are large compared with the standard deviation: the variance comes from fp64 sums, so a mean of 1e3 with
/// a standard deviation of 1 loses no accuracy.
TEST(BatchNorm, LargeMean) {
  const Shape shape{4, 8, 8, 16};
  Inputs in(shape);
  for (float& x : in.x) x += 1000.0f;
  reference::batch_norm_statistics(shape, in.x.data(), in.statistics.data());
  reference::ReferenceBackend reference;
  const Finalized expected = finalize(reference, describe(shape), in, GradientMode::overwrite);
  for (auto& [name, backend] : tested_backends()) {
    const Finalized actual = finalize(*backend, describe(shape), in, GradientMode::overwrite);
    EXPECT_TRUE(near(actual.mean_inverse_stddev, expected.mean_inverse_stddev, 1e-6)) << name;
    EXPECT_TRUE(near(actual.scale_bias, expected.scale_bias, 1e-6)) << name;
  }
}

TEST(BatchNorm, FinalizeInferenceAgreesWithTheReference) {
  const auto run = [](Backend& backend, const Shape& shape, const Inputs& in) {
    Device device(backend);
    const auto op = backend.make(describe(shape));
    const std::size_t n = in.statistics.size();
    BatchNorm::FinalizeInference args;
    args.running_mean = device.upload(random_normal(shape[3], 6));
    args.running_variance = device.upload(random_uniform(shape[3], 7, 0.0, 4.0));
    args.gamma = device.upload(in.gamma);
    args.beta = device.upload(in.beta);
    args.scale_bias = device.garbage<float>(n);
    args.mean_inverse_stddev = device.garbage<float>(n);
    op->finalize_inference(args, device.op_memory(op->memory_requirements()), device.stream());
    std::vector<float> out = device.download(args.scale_bias, n);
    const std::vector<float> mean_inverse_stddev = device.download(args.mean_inverse_stddev, n);
    out.insert(out.end(), mean_inverse_stddev.begin(), mean_inverse_stddev.end());
    return out;
  };
  reference::ReferenceBackend reference;
  for (const Shape& shape : kCases)
    for (auto& [name, backend] : tested_backends()) {
      const Inputs in(shape);
      // A few roundings, relative to the maximum over the channels.
      EXPECT_TRUE(near(run(*backend, shape, in), run(reference, shape, in), 1e-6)) << name << ", x " << shape.text();
    }
}

struct BackwardOutputs {
  std::vector<float> dx, dgamma, dbeta;
};

struct BackwardCase {
  Layout layout = Layout::nhwc;
  bool in_place = false;  // dx and dz are the same memory
  GradientMode mode = GradientMode::overwrite;
  DType dtype = DType::fp32;
};

BackwardOutputs run_backward(Backend& backend, BatchNormDescription d, const Inputs& in, const BackwardCase& c,
                             const std::vector<float>& mean_inverse_stddev, const std::vector<double>& sums,
                             const std::vector<double>& local_sums) {
  d.layout = c.layout;
  d.dtype = c.dtype;
  Device device(backend);
  const auto op = backend.make(d);
  const std::size_t channels = in.gamma.size();
  void* dz = device.upload_as(d.dtype, to_layout(d.x, c.layout, in.dz));
  BatchNorm::Backward args;
  args.sums = device.upload(sums);
  args.local_sums = device.upload(local_sums);
  args.dz = dz;
  args.x = device.upload_as(d.dtype, to_layout(d.x, c.layout, in.x));
  args.gamma = device.upload(in.gamma);
  args.mean_inverse_stddev = device.upload(mean_inverse_stddev);
  void* dx = c.in_place ? dz : device.garbage_as(d.dtype, in.dz.size());
  args.dx = dx;
  args.parameter_mode = c.mode;
  const std::vector<float> before(in.before.begin(), in.before.begin() + static_cast<std::ptrdiff_t>(channels));
  if (c.mode == GradientMode::overwrite) {
    args.dgamma = device.garbage<float>(channels);
    args.dbeta = device.garbage<float>(channels);
  } else if (c.mode == GradientMode::accumulate) {
    args.dgamma = device.upload(before);
    args.dbeta = device.upload(before);
  }
  op->backward(args, device.op_memory(op->memory_requirements()), device.stream());
  BackwardOutputs out;
  out.dx = from_layout(d.x, c.layout, device.download_as(d.dtype, dx, in.dz.size()));
  if (args.dgamma) out.dgamma = device.download(args.dgamma, channels);
  if (args.dbeta) out.dbeta = device.download(args.dbeta, channels);
  return out;
}

TEST(BatchNorm, BackwardAgreesWithTheReference) {
  reference::ReferenceBackend reference;
  for (const Shape& shape : kCases) {
    Inputs in(shape);
    in.x = rounded_to(DType::bf16, in.x);  // the same values in all types
    in.dz = rounded_to(DType::bf16, in.dz);
    const BatchNormDescription d = describe(shape, 2);  // as if over two ranks: total sums, and local sums of this rank
    const Finalized finalized = finalize(reference, describe(shape), in, GradientMode::skip);
    const std::vector<double> sums = to_double(random_normal(2 * shape[3], 8));
    const std::vector<double> local_sums = to_double(random_normal(2 * shape[3], 9));
    // gamma * inverse_stddev * (dz - sum dz / n - x_hat * sum / n), computed with absolute values, bounds the terms of
    // dx.
    Inputs positive = in;
    positive.x = absolute(in.x);
    positive.dz = absolute(in.dz);
    positive.gamma = absolute(in.gamma);
    positive.before = absolute(in.before);
    std::vector<float> mean_inverse_stddev = absolute(finalized.mean_inverse_stddev);
    std::vector<double> negative_sums = sums, positive_local_sums = local_sums;
    for (std::size_t c = 0; c < in.gamma.size(); ++c) mean_inverse_stddev[c] *= -1;
    for (double& sum : negative_sums) sum = -std::abs(sum);
    for (double& sum : positive_local_sums) sum = std::abs(sum);

    for (GradientMode mode : {GradientMode::overwrite, GradientMode::accumulate, GradientMode::skip})
      for (bool in_place : {false, true})
        for (const auto& [layout, dtype] : {std::pair{Layout::nhwc, DType::fp32},
                                            {Layout::nchw16c, DType::fp32},
                                            {Layout::nhwc, DType::bf16},
                                            {Layout::nhwc, DType::fp16}}) {
          if (!fits(shape, layout)) continue;
          const BackwardCase plain{Layout::nhwc, in_place, mode};
          const auto expected = run_backward(reference, d, in, plain, finalized.mean_inverse_stddev, sums, local_sums);
          const auto magnitude =
              run_backward(reference, d, positive, plain, mean_inverse_stddev, negative_sums, positive_local_sums);
          for (auto& [name, backend] : tested_backends()) {
            if (!computes_in(*backend, layout) || !computes_in(*backend, dtype)) continue;
            SCOPED_TRACE(std::string(name) + ", " + text(layout) + ", " + std::string(lockstep::name(dtype)) + ", x " +
                         shape.text() + ", parameters " + text(mode) + (in_place ? ", in place" : ""));
            const auto actual = run_backward(*backend, d, in, {layout, in_place, mode, dtype},
                                             finalized.mean_inverse_stddev, sums, local_sums);
            // An element of dx results from about ten operations, and the sums from one or two roundings.
            const double stored = dtype == DType::bf16   ? kBf16Roundoff / kRoundoff
                                  : dtype == DType::fp16 ? kFp16Roundoff / kRoundoff
                                                         : 0;
            EXPECT_TRUE(within_rounding(actual.dx, expected.dx, magnitude.dx, 16 + stored)) << "dx";
            EXPECT_TRUE(within_rounding(actual.dgamma, expected.dgamma, magnitude.dgamma, 4)) << "dgamma";
            EXPECT_TRUE(within_rounding(actual.dbeta, expected.dbeta, magnitude.dbeta, 4)) << "dbeta";
          }
        }
  }
}

/// Two norms in one call give the same bits as two calls.
TEST(BatchNorm, ComputesTwoNormsOfOneGradient) {
  for (const Shape& shape : kCases)
    for (const DType dtype : {DType::fp32, DType::fp16, DType::bf16})
      for (const GradientMode mode : {GradientMode::overwrite, GradientMode::accumulate, GradientMode::skip})
        for (auto& [name, backend] : tested_backends()) {
          if (!computes_in(*backend, dtype)) continue;
          SCOPED_TRACE(std::string(name) + ", x " + shape.text() + ", " + std::string(lockstep::name(dtype)));
          const Inputs in(shape);
          const std::size_t n = in.statistics.size(), channels = n / 2, n_x = in.x.size();
          Device device(*backend);
          BatchNormDescription d = describe(shape);
          d.dtype = dtype;
          const auto op = backend->make(d);
          const OpMemory memory = device.op_memory(op->memory_requirements());
          const void* const dz = device.upload_as(dtype, in.dz);
          struct Norm {
            BatchNorm::Finalize finalize;
            BatchNorm::Backward backward;
          };
          const auto make = [&](std::uint32_t stream) {
            Norm norm;
            std::vector<double> statistics = in.statistics;
            for (std::size_t c = 0; c < channels; ++c) statistics[channels + c] *= stream;
            norm.finalize = {.statistics = device.upload(statistics),
                             .gamma = device.upload(random_uniform(shape[3], stream, 0.5, 1.5)),
                             .beta = device.upload(random_normal(shape[3], stream + 1)),
                             .scale_bias = device.garbage<float>(n),
                             .mean_inverse_stddev = device.garbage<float>(n),
                             .batch_statistics = device.upload(in.before),
                             .batch_statistics_mode = mode};
            const float* const sums = device.upload(random_normal(2 * shape[3], stream + 2));
            norm.backward = {.sums = sums,
                             .local_sums = sums,
                             .dz = dz,
                             .x = device.upload_as(dtype, random_normal(shape.n_elements(), stream + 3)),
                             .gamma = norm.finalize.gamma,
                             .mean_inverse_stddev = norm.finalize.mean_inverse_stddev,
                             .dx = device.garbage_as(dtype, n_x),
                             .dgamma = device.upload(in.gamma),
                             .dbeta = device.upload(in.beta),
                             .parameter_mode = mode};
            return norm;
          };
          const auto outputs = [&](const Norm& norm) {
            return std::array{device.download(norm.finalize.scale_bias, n),
                              device.download(norm.finalize.mean_inverse_stddev, n),
                              device.download(norm.finalize.batch_statistics, n),
                              device.download_as(dtype, norm.backward.dx, n_x),
                              device.download(norm.backward.dgamma, channels),
                              device.download(norm.backward.dbeta, channels)};
          };
          const Norm a = make(40), b = make(50), first = make(40), second = make(50);
          for (const Norm& norm : {a, b}) {
            op->finalize(norm.finalize, memory, device.stream());
            op->backward(norm.backward, memory, device.stream());
          }
          op->finalize_both({first.finalize, second.finalize}, memory, device.stream());
          op->backward_both({first.backward, second.backward}, memory, device.stream());
          EXPECT_EQ(outputs(first), outputs(a));
          EXPECT_EQ(outputs(second), outputs(b));
        }
}

/// Sums in fp32 have the same effect as the same numbers in fp64.
TEST(BatchNorm, TakesSumsInFp32) {
  for (const Shape& shape : kCases)
    for (auto& [name, backend] : tested_backends()) {
      SCOPED_TRACE(std::string(name) + ", x " + shape.text());
      Inputs in(shape);
      for (double& sum : in.statistics) sum = static_cast<float>(sum);
      const std::size_t n = in.statistics.size(), channels = n / 2;
      const Finalized expected = finalize(*backend, describe(shape), in, GradientMode::overwrite);
      Device device(*backend);
      const auto op = backend->make(describe(shape));
      const OpMemory memory = device.op_memory(op->memory_requirements());
      const BatchNorm::Finalize args{
          .statistics = device.upload(std::vector<float>(in.statistics.begin(), in.statistics.end())),
          .gamma = device.upload(in.gamma),
          .beta = device.upload(in.beta),
          .scale_bias = device.garbage<float>(n),
          .mean_inverse_stddev = device.garbage<float>(n),
          .batch_statistics = device.garbage<float>(n),
          .batch_statistics_weight = 0.25f};
      op->finalize(args, memory, device.stream());
      EXPECT_EQ(device.download(args.scale_bias, n), expected.scale_bias);
      EXPECT_EQ(device.download(args.mean_inverse_stddev, n), expected.mean_inverse_stddev);
      EXPECT_EQ(device.download(args.batch_statistics, n), expected.batch_statistics);

      const std::vector<float> sums = random_normal(2 * shape[3], 8);
      const BackwardOutputs backward = run_backward(*backend, describe(shape), in, {}, expected.mean_inverse_stddev,
                                                    to_double(sums), to_double(sums));
      const float* const d_sums = device.upload(sums);
      const BatchNorm::Backward of_fp32{.sums = d_sums,
                                        .local_sums = d_sums,
                                        .dz = device.upload(in.dz),
                                        .x = device.upload(in.x),
                                        .gamma = args.gamma,
                                        .mean_inverse_stddev = args.mean_inverse_stddev,
                                        .dx = device.garbage<float>(in.dz.size()),
                                        .dgamma = device.garbage<float>(channels),
                                        .dbeta = device.garbage<float>(channels)};
      op->backward(of_fp32, memory, device.stream());
      EXPECT_EQ(device.download(static_cast<const float*>(of_fp32.dx), in.dz.size()), backward.dx);
      EXPECT_EQ(device.download(of_fp32.dgamma, channels), backward.dgamma);
      EXPECT_EQ(device.download(of_fp32.dbeta, channels), backward.dbeta);
    }
}

/// Scale and bias in the type of x are the fp32 values, rounded.
TEST(BatchNorm, NarrowsScaleAndBias) {
  for (const Shape& shape : kCases)
    for (const DType dtype : {DType::fp16, DType::bf16})
      for (auto& [name, backend] : tested_backends()) {
        if (!computes_in(*backend, dtype)) continue;
        const Inputs in(shape);
        const std::size_t n = in.statistics.size(), channels = n / 2;
        Device device(*backend);
        BatchNormDescription d = describe(shape);
        d.dtype = dtype;
        const auto op = backend->make(d);
        const OpMemory memory = device.op_memory(op->memory_requirements());
        const BatchNorm::Finalize args{.statistics = device.upload(in.statistics),
                                       .gamma = device.upload(in.gamma),
                                       .beta = device.upload(in.beta),
                                       .scale_bias = device.garbage<float>(n),
                                       .mean_inverse_stddev = device.garbage<float>(n),
                                       .low_precision_scale_bias = device.garbage_as(dtype, n)};
        op->finalize(args, memory, device.stream());
        EXPECT_EQ(device.download_as(dtype, args.low_precision_scale_bias, n),
                  rounded_to(dtype, device.download(args.scale_bias, n)))
            << name;
        const BatchNorm::FinalizeInference inference{.running_mean = device.upload(random_normal(shape[3], 6)),
                                                     .running_variance = device.upload(std::vector<float>(channels, 2)),
                                                     .gamma = args.gamma,
                                                     .beta = args.beta,
                                                     .scale_bias = device.garbage<float>(n),
                                                     .low_precision_scale_bias = device.garbage_as(dtype, n)};
        op->finalize_inference(inference, memory, device.stream());
        EXPECT_EQ(device.download_as(dtype, inference.low_precision_scale_bias, n),
                  rounded_to(dtype, device.download(inference.scale_bias, n)))
            << name;
      }
}

/// After finalize_inference the norm is an affine function: dx = scale * dz, whatever x is.
TEST(BatchNorm, BackwardThroughConstantStatistics) {
  reference::ReferenceBackend reference;
  std::vector<Backend*> backends{&reference};
  for (auto& [name, backend] : tested_backends()) backends.push_back(backend.get());
  for (const Shape& shape : kCases)
    for (Backend* backend : backends) {
      const Inputs in(shape);
      const auto channels = static_cast<std::size_t>(shape[3]);
      Device device(*backend);
      const auto op = backend->make(describe(shape));
      const OpMemory memory = device.op_memory(op->memory_requirements());
      const float* gamma = device.upload(in.gamma);
      const BatchNorm::FinalizeInference finalize{
          .running_mean = device.upload(random_normal(shape[3], 6)),
          .running_variance = device.upload(random_uniform(shape[3], 7, 0.5, 4.0)),
          .gamma = gamma,
          .beta = device.upload(in.beta),
          .scale_bias = device.garbage<float>(2 * channels),
          .mean_inverse_stddev = device.garbage<float>(2 * channels)};
      op->finalize_inference(finalize, memory, device.stream());
      float* const dx = device.garbage<float>(in.dz.size());
      op->backward({.dz = device.upload(in.dz),
                    .x = device.upload(in.x),
                    .gamma = gamma,
                    .mean_inverse_stddev = finalize.mean_inverse_stddev,
                    .dx = dx,
                    .parameter_mode = GradientMode::skip},
                   memory, device.stream());
      const std::vector<float> scale = device.download(finalize.scale_bias, channels);
      std::vector<double> expected = to_double(in.dz);
      for (std::size_t i = 0; i < expected.size(); ++i) expected[i] *= scale[i % channels];
      EXPECT_TRUE(near(device.download(dx, in.dz.size()), expected, 1e-6)) << backend->name() << ", " << shape.text();
    }
}

/// Everything in double: statistics, finalize, scale and bias; loss = <dz, scale * x + bias>.
TEST(BatchNorm, AgreesWithFiniteDifferences) {
  for (const Shape& shape : kCases) {
    SCOPED_TRACE(shape.text());
    const Inputs in(shape);
    const BatchNormDescription d = describe(shape);
    const auto channels = static_cast<std::size_t>(shape[3]);
    std::vector<double> x = to_double(in.x), gamma = to_double(in.gamma), beta = to_double(in.beta);
    const std::vector<double> dz = to_double(in.dz);
    std::vector<double> scale_bias(2 * channels), mean_inverse_stddev(2 * channels), statistics(2 * channels);
    const auto loss = [&] {
      reference::batch_norm_statistics(shape, x.data(), statistics.data());
      reference::batch_norm_finalize<double>(
          d, {statistics.data(), gamma.data(), beta.data(), scale_bias.data(), mean_inverse_stddev.data(), nullptr});
      double sum = 0;
      for (std::size_t i = 0; i < x.size(); ++i)
        sum += dz[i] * (scale_bias[i % channels] * x[i] + scale_bias[channels + i % channels]);
      return sum;
    };
    loss();
    std::vector<double> sums(2 * channels), dx(x.size()), dgamma(channels), dbeta(channels);
    for (std::size_t i = 0; i < x.size(); ++i) {
      const std::size_t c = i % channels;
      sums[c] += dz[i];
      sums[channels + c] += dz[i] * (x[i] - mean_inverse_stddev[c]) * mean_inverse_stddev[channels + c];
    }
    reference::batch_norm_backward<double>(d, {sums.data(), sums.data(), dz.data(), x.data(), gamma.data(),
                                               mean_inverse_stddev.data(), dx.data(), dgamma.data(), dbeta.data()});
    // The two rows of a channel may be close together: the third derivative grows as the standard deviation shrinks.
    EXPECT_TRUE(gradient_matches(x, dx, loss, 1e-6)) << "dx";
    EXPECT_TRUE(gradient_matches(gamma, dgamma, loss, 1e-6)) << "dgamma";
    EXPECT_TRUE(gradient_matches(beta, dbeta, loss, 1e-6)) << "dbeta";
  }
}

}  // namespace
}  // namespace lockstep::test

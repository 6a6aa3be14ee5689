// RMS norm of the backends, compared with the reference; the reference, compared with finite differences.
#include "test/reference/rms_norm.h"

#include <gtest/gtest.h>

#include "test/reference/backend.h"
#include "test/support/compare.h"
#include "test/support/device.h"
#include "test/support/finite_difference.h"
#include "test/support/tensor.h"

namespace lockstep::test {
namespace {

struct Case {
  std::int64_t rows, width;
  bool residual = true;
  bool added = true;
  float weight_offset = 0;
};
const Case kCases[] = {{1, 1},
                       {1, 16},
                       {3, 37, false},
                       {7, 64, true, false},
                       {17, 100, false, false},
                       {33, 576},
                       {5, 1037, false},
                       {1, 3001},
                       {129, 31},
                       {300, 48},
                       {2, 17, true},
                       {64, 256, false},
                       {7, 100, true, true, 1},
                       {3, 37, false, false, 1},
                       // As many 16-bit numbers as one warp keeps in registers, one pack more, and so on: a row per
                       // warp, per two warps, and wider than the registers of a block, in packs and one by one.
                       {11, 1024},
                       {5, 1032},
                       {2, 8192, true, false},
                       {3, 8200},
                       {2, 8201, false}};

struct Inputs {
  Inputs(const Case& c, DType dtype)
      : x(rounded_to(dtype, random_normal(c.rows * c.width, 1))),
        residual(rounded_to(dtype, random_normal(c.rows * c.width, 2))),
        weight(random_uniform(c.width, 3, 0.5, 1.5)),
        dy(rounded_to(dtype, random_normal(c.rows * c.width, 4))),
        added(rounded_to(dtype, random_normal(c.rows * c.width, 5))),
        ds_before(rounded_to(dtype, random_normal(c.rows * c.width, 6))),
        dweight_before(random_normal(c.width, 7)) {}
  std::vector<float> x, residual, weight, dy, added, ds_before, dweight_before;
};

struct Outputs {
  std::vector<float> s, y, ds, dweight;
};

RmsNormDescription describe(const Case& c, DType dtype = DType::fp32) {
  return {.rows = c.rows, .width = c.width, .dtype = dtype, .residual = c.residual, .weight_offset = c.weight_offset};
}

Outputs run(Backend& backend, const Case& c, DType dtype, const Inputs& in, GradientMode ds_mode,
            GradientMode dweight_mode) {
  const RmsNormDescription d = describe(c, dtype);
  const std::size_t n = in.x.size();
  Device device(backend);
  const auto op = backend.make(d);
  const OpMemory memory = device.op_memory(op->memory_requirements());
  RmsNorm::Forward forward;
  forward.x = device.upload_as(dtype, in.x);
  if (c.residual) {
    forward.residual = device.upload_as(dtype, in.residual);
    forward.s = device.garbage_as(dtype, n);
  }
  forward.weight = device.upload(in.weight);
  forward.y = device.garbage_as(dtype, n);
  op->forward(forward, memory, device.stream());

  RmsNorm::Backward backward;
  backward.dy = device.upload_as(dtype, in.dy);
  backward.s = c.residual ? forward.s : forward.x;
  backward.weight = forward.weight;
  backward.added = c.added ? device.upload_as(dtype, in.added) : nullptr;
  backward.ds =
      ds_mode == GradientMode::overwrite ? device.garbage_as(dtype, n) : device.upload_as(dtype, in.ds_before);
  backward.ds_mode = ds_mode;
  backward.dweight = dweight_mode == GradientMode::overwrite ? device.garbage<float>(in.weight.size())
                                                             : device.upload(in.dweight_before);
  backward.dweight_mode = dweight_mode;
  op->backward(backward, memory, device.stream());
  return {device.download_as(dtype, backward.s, n), device.download_as(dtype, forward.y, n),
          device.download_as(dtype, backward.ds, n), device.download(backward.dweight, in.weight.size())};
}

/// The sums of absolute values that make up each result.
Outputs magnitudes(const Case& c, const Inputs& in, const std::vector<float>& s) {
  Outputs out = {std::vector<float>(s.size()), std::vector<float>(s.size()), std::vector<float>(s.size()),
                 absolute(in.dweight_before)};
  const auto width = static_cast<std::size_t>(c.width);
  const auto factor = [&](std::size_t k) { return double{c.weight_offset} + in.weight[k]; };
  for (std::size_t begin = 0; begin < s.size(); begin += width) {
    const double inverse = reference::inverse_rms(describe(c), &s[begin]);
    double mean = 0;
    for (std::size_t k = 0; k < width; ++k)
      mean += std::abs(factor(k) * in.dy[begin + k] * s[begin + k]) * inverse / static_cast<double>(width);
    for (std::size_t k = 0; k < width; ++k) {
      const std::size_t i = begin + k;
      const double s_hat = std::abs(s[i]) * inverse;
      out.s[i] = std::abs(in.x[i]) + (c.residual ? std::abs(in.residual[i]) : 0.0f);
      out.y[i] = static_cast<float>(s_hat * factor(k));
      out.ds[i] = static_cast<float>(inverse * (factor(k) * std::abs(in.dy[i]) + s_hat * mean)) +
                  std::abs(in.added[i]) + std::abs(in.ds_before[i]);
      out.dweight[k] += static_cast<float>(std::abs(in.dy[i]) * s_hat);
    }
  }
  return out;
}

testing::AssertionResult all_near(const std::vector<float>& actual, const std::vector<float>& expected,
                                  const std::vector<float>& magnitude, double n_operations, DType dtype) {
  const double of_type = dtype == DType::bf16 ? kBf16Roundoff : dtype == DType::fp16 ? kFp16Roundoff : 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const double bound = of_type * std::abs(expected[i]) + n_operations * kRoundoff * magnitude[i] + 0x1p-25;
    if (!(std::abs(actual[i] - expected[i]) <= bound))
      return testing::AssertionFailure() << "element " << i << " is " << actual[i] << ", expected " << expected[i]
                                         << " within " << bound;
  }
  return testing::AssertionSuccess();
}

TEST(RmsNorm, AgreesWithTheReference) {
  reference::ReferenceBackend reference;
  constexpr GradientMode kModes[] = {GradientMode::overwrite, GradientMode::accumulate, GradientMode::skip};
  for (const Case& c : kCases)
    for (const DType dtype : {DType::fp32, DType::bf16, DType::fp16})
      for (const GradientMode ds_mode : kModes) {
        // Many rows are slow if each is a block of fibers.
        if (c.rows > 100 && (dtype == DType::fp16 || ds_mode != GradientMode::overwrite)) continue;
        const GradientMode dweight_mode = kModes[(static_cast<int>(ds_mode) + c.width) % 3];
        const Inputs in(c, dtype);
        for (auto& [name, backend] : tested_backends()) {
          if (!computes_in(*backend, dtype)) continue;
          SCOPED_TRACE(fmt::format("{}, {} x {}, {}, ds {}, dweight {}", name, c.rows, c.width, lockstep::name(dtype),
                                   text(ds_mode), text(dweight_mode)));
          const Outputs actual = run(*backend, c, dtype, in, ds_mode, dweight_mode);
          // Everything except s is computed from the residual stream as it was stored, that is, rounded.
          Inputs from_s = in;
          from_s.x = actual.s;
          Case without = c;
          without.residual = false;
          Outputs expected = run(reference, without, DType::fp32, from_s, ds_mode, dweight_mode);
          if (c.residual) expected.s = run(reference, c, DType::fp32, in, ds_mode, dweight_mode).s;
          const Outputs magnitude = magnitudes(c, in, actual.s);
          // The inverse rms contains a sum over the row and occurs three times in ds; the mean contains another sum.
          const auto width = static_cast<double>(c.width), rows = static_cast<double>(c.rows);
          EXPECT_TRUE(all_near(actual.s, expected.s, magnitude.s, c.residual ? 1 : 0, dtype)) << "s";
          EXPECT_TRUE(all_near(actual.y, expected.y, magnitude.y, width / 2 + 8, dtype)) << "y";
          EXPECT_TRUE(all_near(actual.ds, expected.ds, magnitude.ds, 2.5 * width + 16, dtype)) << "ds";
          EXPECT_TRUE(all_near(actual.dweight, expected.dweight, magnitude.dweight, rows + width / 2 + 8, DType::fp32))
              << "dweight";
        }
      }
}

/// The gradient of the weight has the same bits on any number of threads, even with the maximum number of blocks of
/// rows.
TEST(RmsNorm, SameBitsOnAnyNumberOfThreads) {
  if (!is_tested_device("cpu")) GTEST_SKIP() << "it tests the cpu backend";
  const Case c{1100, 192};
  for (const DType dtype : {DType::fp32, DType::bf16}) {
    const Inputs in(c, dtype);
    Outputs first;
    for (const int threads : {1, 2, 3}) {
      const auto backend = make_backend({.device = "cpu", .threads = threads});
      const Outputs out = run(*backend, c, dtype, in, GradientMode::overwrite, GradientMode::overwrite);
      if (threads == 1) {
        first = out;
        reference::ReferenceBackend reference;
        Inputs from_s = in;
        from_s.x = out.s;
        const Outputs expected = run(reference, {c.rows, c.width, false}, DType::fp32, from_s, GradientMode::overwrite,
                                     GradientMode::overwrite);
        EXPECT_TRUE(all_near(out.dweight, expected.dweight, magnitudes(c, in, out.s).dweight,
                             static_cast<double>(c.rows + c.width), DType::fp32));
      }
      EXPECT_EQ(out.dweight, first.dweight) << threads << " threads";
      EXPECT_EQ(out.ds, first.ds) << threads << " threads";
    }
  }
}

/// The placement that a graph may use: s at the address of the residual, and ds at the address of the gradient that is
/// added.
TEST(RmsNorm, InPlace) {
  const Case c{33, 37};
  const Inputs in(c, DType::fp32);
  for (auto& [name, backend] : tested_backends()) {
    const Outputs expected = run(*backend, c, DType::fp32, in, GradientMode::overwrite, GradientMode::overwrite);
    Device device(*backend);
    const auto op = backend->make(describe(c));
    const OpMemory memory = device.op_memory(op->memory_requirements());
    float* const stream = device.upload(in.residual);
    const float* const weight = device.upload(in.weight);
    float* const y = device.garbage<float>(in.x.size());
    op->forward({.x = device.upload(in.x), .residual = stream, .weight = weight, .s = stream, .y = y}, memory,
                device.stream());
    float* const gradient = device.upload(in.added);
    float* const dweight = device.garbage<float>(in.weight.size());
    op->backward({.dy = device.upload(in.dy),
                  .s = stream,
                  .weight = weight,
                  .added = gradient,
                  .ds = gradient,
                  .dweight = dweight},
                 memory, device.stream());
    EXPECT_EQ(device.download(stream, in.x.size()), expected.s) << name;
    EXPECT_EQ(device.download(y, in.x.size()), expected.y) << name;
    EXPECT_EQ(device.download(gradient, in.x.size()), expected.ds) << name;
    EXPECT_EQ(device.download(dweight, in.weight.size()), expected.dweight) << name;
  }
}

TEST(RmsNorm, Inference) {
  const Case c{5, 100};
  const Inputs in(c, DType::fp32);
  for (auto& [name, backend] : tested_backends()) {
    const Outputs expected = run(*backend, c, DType::fp32, in, GradientMode::overwrite, GradientMode::overwrite);
    Device device(*backend);
    RmsNormDescription d = describe(c);
    d.inference = true;
    const auto op = backend->make(d);
    EXPECT_EQ(op->memory_requirements().saved_bytes, 0u) << name;
    float* const y = device.garbage<float>(in.x.size());
    op->forward({.x = device.upload(in.x),
                 .residual = device.upload(in.residual),
                 .weight = device.upload(in.weight),
                 .s = device.garbage<float>(in.x.size()),
                 .y = y},
                {}, device.stream());
    EXPECT_EQ(device.download(y, in.x.size()), expected.y) << name;
  }
}

TEST(RmsNorm, RejectsImpossibleDescriptions) {
  for (auto& [name, backend] : tested_backends()) {
    EXPECT_THROW((void)backend->make(RmsNormDescription{.rows = 0, .width = 4}), Error) << name;
    EXPECT_THROW((void)backend->make(RmsNormDescription{.rows = 4, .width = 0}), Error) << name;
    EXPECT_THROW((void)backend->make(RmsNormDescription{.rows = 4, .width = 4, .dtype = DType::int32}), Error) << name;
  }
}

TEST(RmsNorm, AgreesWithFiniteDifferences) {
  for (const Case& c : kCases) {
    if (c.rows * c.width > 2000) continue;
    SCOPED_TRACE(Shape({c.rows, c.width}).text());
    const Inputs in(c, DType::fp32);
    const RmsNormDescription d = describe(c);
    std::vector<double> x = to_double(in.x), residual = to_double(in.residual), weight = to_double(in.weight);
    const std::vector<double> dy = to_double(in.dy), added = to_double(in.added);
    std::vector<double> s = x, y(x.size()), ds(x.size()), dweight(weight.size());
    const auto forward = [&] {
      s = x;
      reference::rms_norm_forward<double>(
          d, {x.data(), c.residual ? residual.data() : nullptr, weight.data(), s.data(), y.data()});
    };
    forward();
    reference::rms_norm_backward<double>(d, {.dy = dy.data(),
                                             .s = s.data(),
                                             .weight = weight.data(),
                                             .added = c.added ? added.data() : nullptr,
                                             .ds = ds.data(),
                                             .dweight = dweight.data()});
    const auto loss = [&] {
      forward();
      return dot(dy, y) + (c.added ? dot(added, s) : 0.0);
    };
    EXPECT_TRUE(gradient_matches(x, ds, loss, 1e-6)) << "x";
    if (c.residual) {
      EXPECT_TRUE(gradient_matches(residual, ds, loss, 1e-6)) << "residual";
    }
    EXPECT_TRUE(gradient_matches(weight, dweight, loss, 1e-6)) << "weight";
  }
}

}  // namespace
}  // namespace lockstep::test

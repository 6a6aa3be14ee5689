// Matmul with an NF4 weight, of the backends, compared with the reference; the reference, compared with finite
// differences.
#include "test/reference/nf4_matmul.h"

#include <gtest/gtest.h>

#include "graph/nf4.h"
#include "test/reference/backend.h"
#include "test/support/compare.h"
#include "test/support/device.h"
#include "test/support/finite_difference.h"
#include "test/support/tensor.h"

namespace lockstep::test {
namespace {

/// One element; odd rows, which begin inside blocks and bytes; several matrices; several tiles of rows; several tiles
/// of columns, of single codes and of eight at a time.
std::vector<Nf4MatmulDescription> cases() {
  return {{.rows = 1, .in_features = 1, .matrices = {1}},
          {.rows = 5, .in_features = 17, .matrices = {33}, .bias = true},
          {.rows = 12, .in_features = 64, .matrices = {64, 16, 16}, .bias = true},
          {.rows = 7, .in_features = 75, .matrices = {3, 5}, .input_gradient = false},
          {.rows = 9, .in_features = 1100, .matrices = {70, 83}},
          {.rows = 3, .in_features = 130, .matrices = {2100}, .bias = true},
          {.rows = 2, .in_features = 136, .matrices = {1000, 1103}}};
}

struct Inputs {
  explicit Inputs(const Nf4MatmulDescription& d)
      : x(random_normal(d.rows * d.in_features, 1)),
        bias(random_normal(d.out_features(), 2)),
        dy(random_normal(d.rows * d.out_features(), 3)),
        dx(random_normal(d.rows * d.in_features, 4)) {
    const Nf4Layout layout = Nf4Layout::of(d.matrices, d.in_features);
    weight.resize(layout.size_bytes);
    std::uint32_t seed = 5;
    for (const Nf4Matrix& matrix : layout.matrices)
      graph::quantize_nf4(random_normal(matrix.rows * d.in_features, seed++), matrix, weight);
  }
  std::vector<float> x, bias, dy, dx;
  std::vector<std::byte> weight;
};

struct Outputs {
  std::vector<float> y, dx;
};

Outputs run(Backend& backend, const Nf4MatmulDescription& d, const Inputs& in, GradientMode mode) {
  Device device(backend);
  const auto op = backend.make(d);
  const OpMemory memory = device.op_memory(op->memory_requirements());
  const auto& values = graph::nf4_scale_values();
  const float* const scale_values = device.upload(std::vector<float>(values.begin(), values.end()));
  const std::byte* const weight = device.upload(in.weight);
  void* const y = device.garbage_as(d.dtype, in.dy.size());
  op->forward({.x = device.upload_as(d.dtype, in.x),
               .weight = weight,
               .scale_values = scale_values,
               .bias = d.bias ? device.upload_as(d.dtype, in.bias) : nullptr,
               .y = y},
              memory, device.stream());
  Outputs out;
  out.y = device.download_as(d.dtype, y, in.dy.size());
  if (d.inference) return out;
  void* const dx = mode == GradientMode::overwrite && d.input_gradient ? device.garbage_as(d.dtype, in.dx.size())
                                                                       : device.upload_as(d.dtype, in.dx);
  op->backward({.dy = device.upload_as(d.dtype, in.dy),
                .weight = weight,
                .scale_values = scale_values,
                .dx = dx,
                .dx_mode = mode},
               memory, device.stream());
  out.dx = device.download_as(d.dtype, dx, in.dx.size());
  return out;
}

TEST(Nf4Matmul, AgreesWithTheReference) {
  reference::ReferenceBackend reference;
  for (const DType dtype : {DType::fp32, DType::bf16, DType::fp16})
    for (Nf4MatmulDescription d : cases())
      for (const GradientMode mode : {GradientMode::overwrite, GradientMode::accumulate, GradientMode::skip}) {
        Inputs in(d);
        for (auto* values : {&in.x, &in.bias, &in.dy, &in.dx}) *values = rounded_to(dtype, *values);
        d.dtype = DType::fp32;
        const Outputs expected = run(reference, d, in, mode);
        d.dtype = dtype;
        const double of_type = dtype == DType::fp32 ? 0 : dtype == DType::bf16 ? kBf16Roundoff : kFp16Roundoff;
        // Terms are products of normally distributed numbers and weights, each at most about 4 and rounded to the type.
        const auto bound = [&](double value, std::int64_t terms) {
          const double size = 4 * std::sqrt(static_cast<double>(terms)) + 4;
          return of_type * (3 * std::abs(value) + size) + kRoundoff * static_cast<double>(terms + 8) * size;
        };
        for (auto& [name, backend] : tested_backends()) {
          if (!computes_in(*backend, dtype)) continue;
          SCOPED_TRACE(fmt::format("{}, {} x {} -> {}, {}, {}", name, d.rows, d.in_features, d.out_features(),
                                   lockstep::name(dtype), text(mode)));
          const Outputs actual = run(*backend, d, in, mode);
          for (std::size_t i = 0; i < expected.y.size(); ++i)
            ASSERT_NEAR(actual.y[i], expected.y[i], bound(expected.y[i], d.in_features)) << "y, " << i;
          for (std::size_t i = 0; i < expected.dx.size(); ++i)
            ASSERT_NEAR(actual.dx[i], expected.dx[i], bound(expected.dx[i], d.out_features())) << "dx, " << i;
        }
      }
}

/// If x is the identity matrix, y is the weight: each backend rounds each element once.
TEST(Nf4Matmul, ExpandsTheWeightExactly) {
  for (const DType dtype : {DType::fp32, DType::bf16, DType::fp16})
    for (const auto& [in_features, matrices] :
         {std::pair{std::int64_t{33}, std::vector<std::int64_t>{17, 6}}, {128, {40, 300}}}) {
      Nf4MatmulDescription d{.rows = in_features, .in_features = in_features, .matrices = matrices};
      Inputs in(d);
      std::ranges::fill(in.x, 0.0f);
      for (std::int64_t i = 0; i < in_features; ++i) in.x[static_cast<std::size_t>(i * (in_features + 1))] = 1;
      const std::vector<float> weight =
          rounded_to(dtype, reference::expand_nf4(d, in.weight.data(), graph::nf4_scale_values().data()));
      std::vector<float> expected;
      for (std::int64_t i = 0; i < in_features; ++i)
        for (std::int64_t o = 0; o < d.out_features(); ++o)
          expected.push_back(weight[static_cast<std::size_t>(o * in_features + i)]);
      d.dtype = dtype;
      for (auto& [name, backend] : tested_backends()) {
        if (!computes_in(*backend, dtype)) continue;
        EXPECT_EQ(run(*backend, d, in, GradientMode::overwrite).y, expected) << name << ", " << lockstep::name(dtype);
      }
    }
}

TEST(Nf4Matmul, RefusesImpossibleSizes) {
  for (auto& [name, backend] : tested_backends()) {
    EXPECT_NO_THROW((void)backend->make(Nf4MatmulDescription{.rows = 2, .in_features = 3, .matrices = {4}})) << name;
    EXPECT_THROW((void)backend->make(Nf4MatmulDescription{.rows = 0, .in_features = 3, .matrices = {4}}), Error);
    EXPECT_THROW((void)backend->make(Nf4MatmulDescription{.rows = 2, .in_features = 3, .matrices = {}}), Error);
    EXPECT_THROW((void)backend->make(Nf4MatmulDescription{.rows = 2, .in_features = 3, .matrices = {4, 0}}), Error);
    EXPECT_THROW(
        (void)backend->make(Nf4MatmulDescription{.rows = 2, .in_features = 3, .matrices = {4}, .dtype = DType::int32}),
        Error);
  }
}

TEST(Nf4Matmul, AgreesWithFiniteDifferences) {
  for (const Nf4MatmulDescription& d : cases()) {
    if (d.out_features() > 1000) continue;
    const Inputs in(d);
    const std::vector<float> weight = reference::expand_nf4(d, in.weight.data(), graph::nf4_scale_values().data());
    std::vector<double> x = to_double(in.x), bias = to_double(in.bias), y(in.dy.size()), dx(x.size());
    const std::vector<double> dy = to_double(in.dy);
    reference::nf4_backward(d, weight, dy.data(), dx.data(), GradientMode::overwrite);
    EXPECT_TRUE(gradient_matches(x, dx, [&] {
      reference::nf4_forward(d, weight, x.data(), bias.data(), y.data());
      return dot(dy, y);
    }));
  }
}

}  // namespace
}  // namespace lockstep::test

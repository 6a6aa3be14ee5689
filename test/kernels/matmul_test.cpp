// Matmul with bias and activation of the backends, compared with the reference; the reference, compared with finite
// differences.
#include "test/reference/matmul.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "lockstep/fp8.h"
#include "lockstep/ops/matmul.h"
#include "test/reference/backend.h"
#include "test/support/compare.h"
#include "test/support/device.h"
#include "test/support/finite_difference.h"
#include "test/support/tensor.h"

namespace lockstep::test {
namespace {

struct Case {
  std::int64_t rows, in_features, out_features;
  bool bias = true;
  bool input_gradient = true;
  ActivationFunction activation = ActivationFunction::none;
};
constexpr auto kRelu = ActivationFunction::relu, kGelu = ActivationFunction::gelu, kSilu = ActivationFunction::silu;

const Case kCases[] = {{32, 512, 10},
                       {1, 512, 10},
                       {7, 13, 5},
                       {3, 64, 1000},
                       {1, 1, 1},
                       {5, 17, 33, false},
                       {16, 48, 64, false},
                       {9, 31, 10, true, false},
                       {7, 13, 5, true, true, kRelu},
                       {16, 48, 64, false, true, kRelu},
                       {32, 64, 24, true, true, kRelu},
                       {7, 13, 5, true, true, kGelu},
                       {16, 48, 64, false, true, kGelu},
                       {32, 64, 24, true, true, kGelu},
                       {9, 31, 10, true, false, kGelu},
                       {7, 13, 5, true, true, kSilu},
                       {16, 48, 64, false, true, kSilu},
                       {700, 3, 40},  // several blocks of rows for the gradient of the bias, in packs and one by one
                       {500, 3, 37}};

MatmulDescription describe(const Case& c) {
  MatmulDescription d;
  d.rows = c.rows;
  d.in_features = c.in_features;
  d.out_features = c.out_features;
  d.bias = c.bias;
  d.input_gradient = c.input_gradient;
  d.activation = c.activation;
  return d;
}

struct Inputs {
  explicit Inputs(const Case& c)
      : x(random_normal(c.rows * c.in_features, 1)),
        weight(random_normal(c.out_features * c.in_features, 2)),
        bias(random_normal(c.out_features, 3)),
        dy(random_normal(c.rows * c.out_features, 4)),
        dx_before(random_normal(c.rows * c.in_features, 5)),
        dweight_before(random_normal(c.out_features * c.in_features, 6)),
        dbias_before(random_normal(c.out_features, 7)) {}
  std::vector<float> x, weight, bias, dy, dx_before, dweight_before, dbias_before;

  Inputs positive() const {
    Inputs in = *this;
    for (auto* values : {&in.x, &in.weight, &in.bias, &in.dy, &in.dx_before, &in.dweight_before, &in.dbias_before})
      *values = absolute(*values);
    return in;
  }
};

struct Outputs {
  std::vector<float> y, dx, dweight, dbias;
};

/// The memory of a gradient; null if the gradient is skipped.
void* gradient(Device& device, DType dtype, GradientMode mode, const std::vector<float>& before) {
  if (mode == GradientMode::skip) return nullptr;
  return mode == GradientMode::accumulate ? device.upload_as(dtype, before) : device.garbage_as(dtype, before.size());
}

Outputs run(Backend& backend, const MatmulDescription& d, const Inputs& in, GradientMode dx_mode,
            GradientMode parameter_mode) {
  Device device(backend);
  const auto op = backend.make(d);
  const OpMemory memory = device.op_memory(op->memory_requirements());
  const auto layout = op->weight_layout();
  std::vector<float> packed(layout->n_elements());
  layout->pack(in.weight, packed.data());
  Matmul::Forward forward;
  forward.x = device.upload_as(d.dtype, in.x);
  forward.weight = device.upload_as(d.dtype, packed);
  forward.bias = d.bias ? device.upload_as(d.dtype, in.bias) : nullptr;
  void* const y = device.garbage_as(d.dtype, in.dy.size());
  forward.y = y;
  op->forward(forward, memory, device.stream());
  Outputs out;
  out.y = device.download_as(d.dtype, y, in.dy.size());
  if (d.inference) return out;

  Matmul::Backward backward;
  backward.dy = device.upload_as(d.dtype, in.dy);
  backward.x = forward.x;
  backward.y = forward.y;
  backward.weight = forward.weight;
  backward.dx_mode = dx_mode;
  backward.parameter_mode = parameter_mode;
  void* const dx = d.input_gradient ? gradient(device, d.dtype, dx_mode, in.dx_before) : nullptr;
  backward.dx = dx;
  layout->pack(in.dweight_before, packed.data());
  backward.dweight = gradient(device, d.gradient_dtype, parameter_mode, packed);
  backward.dbias = d.bias ? gradient(device, d.gradient_dtype, parameter_mode, in.dbias_before) : nullptr;
  op->backward(backward, memory, device.stream());
  if (dx) out.dx = device.download_as(d.dtype, dx, in.x.size());
  if (backward.dbias) out.dbias = device.download_as(d.gradient_dtype, backward.dbias, in.bias.size());
  if (!backward.dweight) return out;
  out.dweight.resize(in.weight.size());
  const std::vector<float> dweight = device.download_as(d.gradient_dtype, backward.dweight, packed.size());
  layout->unpack(dweight.data(), out.dweight);
  layout->pack(out.dweight, packed.data());
  EXPECT_EQ(packed, dweight) << "the padding of " << layout->describe() << " must stay zero";
  return out;
}

TEST(Matmul, AgreesWithTheReference) {
  reference::ReferenceBackend reference;
  for (const Case& c : kCases)
    for (GradientMode dx_mode : {GradientMode::overwrite, GradientMode::accumulate, GradientMode::skip})
      for (GradientMode parameter_mode : {GradientMode::overwrite, GradientMode::accumulate, GradientMode::skip}) {
        const Inputs in(c);
        const MatmulDescription d = describe(c);
        const Outputs expected = run(reference, d, in, dx_mode, parameter_mode);
        const Outputs magnitude = run(reference, d, in.positive(), dx_mode, parameter_mode);
        for (auto& [name, backend] : tested_backends()) {
          SCOPED_TRACE(std::string(name) + ", " + Shape({c.rows, c.in_features, c.out_features}).text() + ", dx " +
                       text(dx_mode) + ", parameters " + text(parameter_mode));
          const Outputs actual = run(*backend, d, in, dx_mode, parameter_mode);
          // One rounding per term, and one for the bias or the previous gradient. An activation adds about ten of its
          // own, and its slope depends on z, which is a sum of in_features terms, each with an error of up to one ulp.
          const bool is_curved = c.activation != ActivationFunction::none;
          const auto of_slope = static_cast<double>(is_curved ? 10 + c.in_features * c.in_features : 0);
          const auto length = [&](std::int64_t n) { return static_cast<double>(n) + 4 + of_slope; };
          EXPECT_TRUE(within_rounding(actual.y, expected.y, magnitude.y, length(c.in_features))) << "y";
          EXPECT_TRUE(within_rounding(actual.dx, expected.dx, magnitude.dx, length(c.out_features))) << "dx";
          EXPECT_TRUE(within_rounding(actual.dweight, expected.dweight, magnitude.dweight, length(c.rows)))
              << "dweight";
          EXPECT_TRUE(within_rounding(actual.dbias, expected.dbias, magnitude.dbias, length(c.rows))) << "dbias";
        }
      }
}

/// x, y, their gradients, weight and bias have 16 bits, and sums are in fp32. The z and dz of an activation are
/// rounded, and so is dx before it is added to another gradient.
TEST(Matmul, InBf16AndFp16) {
  reference::ReferenceBackend reference;
  for (const Case& c : kCases)
    for (const DType dtype : {DType::bf16, DType::fp16})
      for (const GradientMode mode : {GradientMode::overwrite, GradientMode::accumulate}) {
        Inputs in(c);
        for (auto* values : {&in.x, &in.weight, &in.bias, &in.dy, &in.dx_before}) *values = rounded_to(dtype, *values);
        MatmulDescription d = describe(c);
        const Outputs expected = run(reference, d, in, mode, mode);
        const Outputs magnitude = run(reference, d, in.positive(), mode, mode);
        d.dtype = dtype;
        const double of_type = (dtype == DType::bf16 ? kBf16Roundoff : kFp16Roundoff) / kRoundoff;
        for (auto& [name, backend] : tested_backends()) {
          if (!computes_in(*backend, dtype)) continue;
          SCOPED_TRACE(std::string(name) + ", " + Shape({c.rows, c.in_features, c.out_features}).text() + ", " +
                       std::string(lockstep::name(dtype)) + ", " + text(mode));
          const Outputs actual = run(*backend, d, in, mode, mode);
          const bool is_curved = c.activation != ActivationFunction::none;
          const auto n = [](std::int64_t terms) { return static_cast<double>(terms) + 4; };
          const double of_gradients = is_curved ? 3 * of_type : 0;
          EXPECT_TRUE(within_rounding(actual.y, expected.y, magnitude.y, n(c.in_features) + 3 * of_type)) << "y";
          EXPECT_TRUE(within_rounding(actual.dx, expected.dx, magnitude.dx, n(c.out_features) + 3 * of_type)) << "dx";
          EXPECT_TRUE(within_rounding(actual.dweight, expected.dweight, magnitude.dweight, n(c.rows) + of_gradients))
              << "dweight";
          EXPECT_TRUE(within_rounding(actual.dbias, expected.dbias, magnitude.dbias, n(c.rows) + of_gradients))
              << "dbias";
        }
      }
}

/// The type in which bf16 tensors are multiplied is chosen by timing; each choice is correct.
/// Gradients in bf16 are those in fp32, or these and what was there before, rounded once.
TEST(Matmul, GradientsInBf16AreRoundedOnce) {
  for (const Case& c : kCases)
    for (auto& [name, backend] : tested_backends()) {
      if (!computes_in(*backend, DType::bf16)) continue;
      MatmulDescription d = describe(c);
      d.dtype = DType::bf16;
      Inputs in(c);
      in.dweight_before = rounded_to(DType::bf16, in.dweight_before);
      in.dbias_before = rounded_to(DType::bf16, in.dbias_before);
      for (const GradientMode mode : {GradientMode::overwrite, GradientMode::accumulate}) {
        d.gradient_dtype = DType::fp32;
        const Outputs wide = run(*backend, d, in, GradientMode::skip, mode);
        d.gradient_dtype = DType::bf16;
        const Outputs narrow = run(*backend, d, in, GradientMode::skip, mode);
        SCOPED_TRACE(fmt::format("{}, {} x {} -> {}, {}", name, c.rows, c.in_features, c.out_features, text(mode)));
        EXPECT_TRUE(near(narrow.dweight, to_double(wide.dweight), 1.01 * kBf16Roundoff));
        EXPECT_TRUE(near(narrow.dbias, to_double(wide.dbias), 1.01 * kBf16Roundoff));
        EXPECT_EQ(rounded_to(DType::bf16, narrow.dweight), narrow.dweight);
      }
    }
}

TEST(Matmul, InBf16WithEachTypeOfProducts) {
  if (!is_tested_device("cpu")) GTEST_SKIP() << "it tests the cpu backend";
  reference::ReferenceBackend reference;
  const Case c{.rows = 37, .in_features = 70, .out_features = 48};
  Inputs in(c);
  for (auto* values : {&in.x, &in.weight, &in.bias, &in.dy, &in.dx_before}) *values = rounded_to(DType::bf16, *values);
  MatmulDescription d = describe(c);
  const auto timed = std::make_shared<Algorithms>();
  timed->enable_timing();
  d.dtype = DType::bf16;
  (void)make_backend({.device = "cpu", .threads = 1, .algorithms = timed})->make(d);
  if (timed->choices().empty()) GTEST_SKIP() << "this processor multiplies in fp32 only";
  for (const char* type : {"bf16", "widened"})
    for (const GradientMode mode : {GradientMode::overwrite, GradientMode::accumulate}) {
      Algorithms::Choices choices = timed->choices();
      choices.begin()->second = type;
      const auto backend =
          make_backend({.device = "cpu", .threads = 1, .algorithms = std::make_shared<Algorithms>(choices)});
      const bool is_widened = backend->make(d)->describe().find("multiplied in fp32") != std::string::npos;
      EXPECT_EQ(is_widened, type == std::string("widened"));
      MatmulDescription in_fp32 = d;
      in_fp32.dtype = DType::fp32;
      const Outputs expected = run(reference, in_fp32, in, mode, mode);
      const Outputs magnitude = run(reference, in_fp32, in.positive(), mode, mode);
      const Outputs actual = run(*backend, d, in, mode, mode);
      const double of_type = 3 * kBf16Roundoff / kRoundoff + 4;
      const auto n = [&](std::int64_t terms) { return static_cast<double>(terms) + of_type; };
      EXPECT_TRUE(within_rounding(actual.y, expected.y, magnitude.y, n(c.in_features))) << "y, " << type;
      EXPECT_TRUE(within_rounding(actual.dx, expected.dx, magnitude.dx, n(c.out_features))) << "dx, " << type;
      EXPECT_TRUE(within_rounding(actual.dweight, expected.dweight, magnitude.dweight, n(c.rows))) << "dweight";
      EXPECT_TRUE(within_rounding(actual.dbias, expected.dbias, magnitude.dbias, n(c.rows))) << "dbias";
    }
}

// ---- fp8 ------------------------------------------------------------------------------------------------------------

/// The numbers of a format that are not negative, ascending, from its definition.
std::vector<double> numbers_of(const Fp8Format& format) {
  std::vector<double> numbers;
  const int n = 1 << format.mantissa_bits;
  for (int i = 0; i < n; ++i) numbers.push_back(std::ldexp(i, format.least_exponent - format.mantissa_bits));
  for (int exponent = format.least_exponent; exponent <= format.greatest_exponent; ++exponent)
    for (int i = n; i < 2 * n; ++i) numbers.push_back(std::ldexp(i, exponent - format.mantissa_bits));
  while (numbers.back() > std::ldexp(1.75, format.greatest_exponent)) numbers.pop_back();
  return numbers;
}

TEST(Fp8, HasTheNumbersOfThePaper) {
  const std::vector<double> e4m3 = numbers_of(kE4m3), e5m2 = numbers_of(kE5m2);
  EXPECT_EQ(std::vector({e4m3.size(), e5m2.size()}), std::vector({std::size_t{127}, std::size_t{124}}));
  EXPECT_EQ(std::vector({e4m3.back(), e4m3[1], e4m3[8]}), std::vector({448.0, 0x1p-9, 0x1p-6}));
  EXPECT_EQ(std::vector({e5m2.back(), e5m2[1], e5m2[4]}), std::vector({57344.0, 0x1p-16, 0x1p-14}));
}

TEST(Fp8, RoundsToTheNearestNumberAndTiesToEven) {
  for (const Fp8Format& format : {kE4m3, kE5m2}) {
    const std::vector<double> numbers = numbers_of(format);
    for (std::size_t i = 0; i + 1 < numbers.size(); ++i) {
      const auto below = static_cast<float>(numbers[i]), above = static_cast<float>(numbers[i + 1]);
      const float middle = (below + above) / 2;
      for (const float sign : {1.0f, -1.0f}) {
        const auto rounded = [&](float value) { return sign * round_to_fp8(sign * value, format); };
        EXPECT_EQ(rounded(below), below);
        EXPECT_EQ(rounded(above), above);
        EXPECT_EQ(rounded(std::nextafter(middle, 0.0f)), below);
        EXPECT_EQ(rounded(middle), i % 2 == 0 ? below : above) << i;
        EXPECT_EQ(rounded(std::nextafter(middle, INFINITY)), above);
      }
    }
  }
}

std::uint32_t bits_in_bf16(float value) { return std::bit_cast<std::uint32_t>(value) >> 16; }

TEST(Fp8, TheScaleIsTheGreatestPowerOfTwoThatFits) {
  for (const Fp8Format& format : {kE4m3, kE5m2}) {
    const double greatest = numbers_of(format).back();
    for (std::uint32_t bits = bits_in_bf16(0x1p-40f); bits < bits_in_bf16(INFINITY); ++bits) {
      const double value = std::bit_cast<float>(bits << 16), scale = fp8_scale(bits, format);
      int exponent = 0;
      ASSERT_EQ(std::frexp(scale, &exponent), 0.5);
      ASSERT_LE(value * scale, greatest) << value;
      ASSERT_GT(2 * value * scale, greatest) << value;
    }
    EXPECT_EQ(fp8_scale(0, format), 0x1p63f);
    EXPECT_TRUE(std::isnan(fp8_scale(bits_in_bf16(INFINITY), format)));
    EXPECT_TRUE(std::isnan(fp8_scale(bits_in_bf16(NAN), format)));
  }
}

/// Rounded to fp8 with one scale, by search among the numbers of the format.
std::vector<float> in_fp8(const Fp8Format& format, const std::vector<float>& values) {
  const std::vector<double> numbers = numbers_of(format);
  double greatest = 0, scale = 1;
  for (const float value : values) greatest = std::max(greatest, std::abs(double{value}));
  while (greatest * scale > numbers.back()) scale /= 2;
  while (2 * greatest * scale <= numbers.back()) scale *= 2;
  std::vector<float> out;
  for (const float value : values) {
    const double scaled = std::abs(double{value}) * scale;
    const auto above = static_cast<std::size_t>(std::ranges::lower_bound(numbers, scaled) - numbers.begin());
    std::size_t nearest = above;
    if (above > 0) {
      const double down = scaled - numbers[above - 1], up = numbers[above] - scaled;
      if (down < up || (down == up && above % 2 == 1)) nearest = above - 1;
    }
    out.push_back(static_cast<float>(std::copysign(numbers[nearest] / scale, double{value})));
  }
  return out;
}

/// Numbers of many magnitudes, so that some are subnormal in fp8 and some become zero.
std::vector<float> spread_out(std::vector<float> values, float scale) {
  for (std::size_t i = 0; i < values.size(); ++i) values[i] *= std::ldexp(scale, -static_cast<int>(i * 7 % 23));
  return rounded_to(DType::bf16, values);
}

bool multiplies_in_fp8(const Backend& backend) {
  try {
    (void)backend.check_precision(Precision::fp8);
    return true;
  } catch (const Error&) {
    return false;
  }
}

MatmulDescription describe_in_fp8(const Case& c) {
  MatmulDescription d = describe(c);
  d.dtype = DType::bf16;
  d.fp8 = true;
  return d;
}

/// As in bf16, with rounded operands. The gradient of the bias is not rounded.
TEST(Matmul, InFp8) {
  reference::ReferenceBackend reference;
  for (const Case& c : {Case{32, 64, 48}, Case{16, 16, 16, false}, Case{144, 80, 208}, Case{48, 272, 32, true, false}})
    for (const auto& [dx_mode, parameter_mode] : {std::pair{GradientMode::overwrite, GradientMode::overwrite},
                                                  {GradientMode::accumulate, GradientMode::accumulate},
                                                  {GradientMode::skip, GradientMode::overwrite},
                                                  {GradientMode::overwrite, GradientMode::skip}}) {
      Inputs in(c);
      in.x = spread_out(in.x, 300.0f);
      in.weight = spread_out(in.weight, 0.1f);
      in.dy = spread_out(in.dy, 1e-5f);
      for (auto* values : {&in.bias, &in.dx_before}) *values = rounded_to(DType::bf16, *values);
      Inputs rounded = in;
      rounded.x = in_fp8(kE4m3, in.x);
      rounded.weight = in_fp8(kE4m3, in.weight);
      rounded.dy = in_fp8(kE5m2, in.dy);
      EXPECT_NE(rounded.x, in.x);
      const MatmulDescription d = describe(c);
      const Outputs expected = run(reference, d, rounded, dx_mode, parameter_mode);
      const Outputs magnitude = run(reference, d, rounded.positive(), dx_mode, parameter_mode);
      const std::vector<float> dbias = run(reference, d, in, dx_mode, parameter_mode).dbias;
      for (auto& [name, backend] : tested_backends()) {
        if (!multiplies_in_fp8(*backend)) continue;
        SCOPED_TRACE(std::string(name) + ", " + Shape({c.rows, c.in_features, c.out_features}).text() + ", dx " +
                     text(dx_mode) + ", parameters " + text(parameter_mode));
        const Outputs actual = run(*backend, describe_in_fp8(c), in, dx_mode, parameter_mode);
        const auto n = [](std::int64_t terms) { return static_cast<double>(terms) + 4; };
        const double of_type = 3 * kBf16Roundoff / kRoundoff;
        EXPECT_TRUE(within_rounding(actual.y, expected.y, magnitude.y, n(c.in_features) + of_type)) << "y";
        EXPECT_TRUE(within_rounding(actual.dx, expected.dx, magnitude.dx, n(c.out_features) + of_type)) << "dx";
        EXPECT_TRUE(within_rounding(actual.dweight, expected.dweight, magnitude.dweight, n(c.rows))) << "dweight";
        EXPECT_TRUE(within_rounding(actual.dbias, dbias, magnitude.dbias, n(c.rows))) << "dbias";
      }
    }
}

/// Also zeros: they have no greatest magnitude that a scale could be computed from.
TEST(Matmul, InFp8ATensorThatIsNotFiniteMakesTheResultNaN) {
  const Case c{16, 32, 48};
  for (auto& [name, backend] : tested_backends()) {
    if (!multiplies_in_fp8(*backend)) continue;
    const auto run_with = [&](float x, float dy) {
      Inputs in(c);
      in.x[100] = x;
      in.dy[100] = dy;
      return run(*backend, describe_in_fp8(c), in, GradientMode::overwrite, GradientMode::skip);
    };
    const auto all_are_nan = [](const std::vector<float>& values) {
      return std::ranges::all_of(values, [](float v) { return std::isnan(v); });
    };
    for (const float value : {INFINITY, -INFINITY, NAN}) {
      EXPECT_TRUE(all_are_nan(run_with(value, 1).y)) << name << ", x " << value;
      EXPECT_TRUE(all_are_nan(run_with(1, value).dx)) << name << ", dy " << value;
    }
    Inputs zeros(c);
    std::ranges::fill(zeros.dy, 0.0f);
    const Outputs out = run(*backend, describe_in_fp8(c), zeros, GradientMode::overwrite, GradientMode::overwrite);
    EXPECT_EQ(out.dx, std::vector<float>(out.dx.size())) << name;
    EXPECT_EQ(out.dweight, std::vector<float>(out.dweight.size())) << name;
  }
}

TEST(Matmul, InFp8NeedsSizesThatAreMultiplesOf16) {
  for (auto& [name, backend] : tested_backends()) {
    if (!multiplies_in_fp8(*backend)) continue;
    EXPECT_NO_THROW((void)backend->make(describe_in_fp8({32, 64, 48}))) << name;
    for (const Case& c : {Case{24, 64, 48}, Case{32, 56, 48}, Case{32, 64, 40}})
      EXPECT_THROW((void)backend->make(describe_in_fp8(c)), Error) << name;
    MatmulDescription d = describe_in_fp8({32, 64, 48});
    d.activation = kRelu;
    EXPECT_THROW((void)backend->make(d), Error) << name;
  }
}

TEST(Matmul, InferenceInFp8HasTheBitsOfTraining) {
  for (auto& [name, backend] : tested_backends()) {
    if (!multiplies_in_fp8(*backend)) continue;
    const Case c{16, 64, 48};
    MatmulDescription d = describe_in_fp8(c);
    const std::vector<float> trained = run(*backend, d, Inputs(c), GradientMode::skip, GradientMode::skip).y;
    d.inference = true;
    EXPECT_EQ(run(*backend, d, Inputs(c), {}, {}).y, trained) << name;
  }
}

// ---- Layouts --------------------------------------------------------------------------------------------------------

/// An op for another batch size, for inference, must be able to read the weights of the training op.
TEST(Matmul, AcceptsTheWeightLayoutOfAnotherOp) {
  reference::ReferenceBackend reference;
  for (const Case& c : kCases) {
    Case larger = c;
    larger.rows = c.rows + 3;
    MatmulDescription d = describe(larger);
    d.inference = true;
    const Inputs in(larger);
    const Outputs expected = run(reference, d, in, {}, {});
    const Outputs magnitude = run(reference, d, in.positive(), {}, {});
    for (auto& [name, backend] : tested_backends()) {
      MatmulDescription planned = d;
      planned.weight_layout = backend->make(describe(c))->weight_layout();
      // One rounding per term, and one for the bias.
      EXPECT_TRUE(within_rounding(run(*backend, planned, in, {}, {}).y, expected.y, magnitude.y,
                                  static_cast<double>(c.in_features) + 4))
          << name;
    }
  }
}

TEST(Matmul, WeightsSurviveTheirLayout) {
  for (const Case& c : kCases)
    for (auto& [name, backend] : tested_backends()) {
      const auto layout = backend->make(describe(c))->weight_layout();
      const Inputs in(c);
      std::vector<float> packed(layout->n_elements(), NAN);
      std::vector<float> unpacked(in.weight.size(), NAN);
      layout->pack(in.weight, packed.data());
      layout->unpack(packed.data(), unpacked);
      EXPECT_EQ(unpacked, in.weight) << name << ", " << layout->describe();
      for (float w : packed) EXPECT_FALSE(std::isnan(w)) << name << ": padding must be zero";
    }
}

TEST(Matmul, AgreesWithFiniteDifferences) {
  for (const Case& c : kCases) {
    SCOPED_TRACE(Shape({c.rows, c.in_features, c.out_features}).text());
    MatmulDescription d = describe(c);
    d.input_gradient = true;
    const Inputs in(c);
    std::vector<double> x = to_double(in.x), weight = to_double(in.weight), bias = to_double(in.bias);
    const std::vector<double> dy = to_double(in.dy);
    std::vector<double> y(dy.size()), z(dy.size()), dx(x.size()), dweight(weight.size()), dbias(bias.size());
    reference::matmul_forward<double>(d, {x.data(), weight.data(), bias.data(), y.data(), z.data()});
    reference::matmul_backward<double>(
        d, {dy.data(), x.data(), weight.data(), z.data(), dx.data(), GradientMode::overwrite, dweight.data(),
            dbias.data(), GradientMode::overwrite});
    const auto loss = [&] {
      reference::matmul_forward<double>(d, {x.data(), weight.data(), bias.data(), y.data()});
      return dot(dy, y);
    };
    if (c.activation == kRelu && std::ranges::any_of(z, [](double v) { return std::abs(v) < 1e-3; }))
      continue;  // a kink
    EXPECT_TRUE(gradient_matches(x, dx, loss)) << "dx";
    EXPECT_TRUE(gradient_matches(weight, dweight, loss)) << "dweight";
    if (c.bias) {
      EXPECT_TRUE(gradient_matches(bias, dbias, loss)) << "dbias";
    }
  }
}

/// A row in a batch of up to 64, as in text generation, has the same bits as alone, and an fp32 output is not rounded.
TEST(Matmul, FewRowsHaveTheSameBitsInAnyBatch) {
  reference::ReferenceBackend reference;
  using Sizes = std::pair<std::int64_t, std::int64_t>;
  for (const auto& [in_features, out_features] : {Sizes{64, 40}, Sizes{37, 13}, Sizes{576, 33}, Sizes{1, 3}})
    for (const DType dtype : {DType::fp32, DType::bf16})
      for (const bool fp32_output : {false, true})
        for (auto& [name, backend] : tested_backends()) {
          if (!computes_in(*backend, dtype)) continue;
          const Case c{16, in_features, out_features, !fp32_output};
          const std::vector<float> x = rounded_to(dtype, random_normal(16 * in_features, 1));
          const std::vector<float> weight = rounded_to(dtype, random_normal(out_features * in_features, 2));
          const std::vector<float> bias = rounded_to(dtype, random_normal(out_features, 3));
          const std::int64_t n_in = in_features, n_out = out_features;
          const auto forward = [&](Backend& of, std::int64_t rows, DType type) {
            MatmulDescription d = describe(c);
            d.rows = rows;
            d.dtype = type;
            d.inference = true;
            d.fp32_output = fp32_output;
            Device device(of);
            const auto op = of.make(d);
            const auto n = static_cast<std::size_t>(rows * n_out);
            const DType y_type = fp32_output ? DType::fp32 : type;
            void* const y = device.garbage_as(y_type, n);
            op->forward({.x = device.upload_as(type, {x.begin(), x.begin() + rows * n_in}),
                         .weight = device.upload_as(type, weight),
                         .bias = c.bias ? device.upload_as(type, bias) : nullptr,
                         .y = y},
                        device.op_memory(op->memory_requirements()), device.stream());
            return device.download_as(y_type, y, n);
          };
          SCOPED_TRACE(fmt::format("{}, {} -> {}, {}, fp32 output {}", name, in_features, out_features,
                                   lockstep::name(dtype), fp32_output));
          const std::vector<float> expected = forward(reference, 16, DType::fp32), all = forward(*backend, 16, dtype);
          const double of_type = dtype == DType::bf16 && !fp32_output ? kBf16Roundoff : 0;
          for (std::size_t i = 0; i < expected.size(); ++i)
            EXPECT_NEAR(all[i], expected[i],
                        of_type * std::abs(expected[i]) + 1.6e-5 * std::sqrt(static_cast<double>(in_features)))
                << i;
          if (std::string_view(name) != "cpu") continue;
          for (const std::int64_t rows : {1, 2, 3, 4, 7, 15}) {
            const std::vector<float> some = forward(*backend, rows, dtype);
            EXPECT_TRUE(std::equal(some.begin(), some.end(), all.begin())) << rows;
          }
        }
}

TEST(Matmul, AnOutputInFp32IsForInferenceOnly) {
  for (auto& [name, backend] : tested_backends()) {
    MatmulDescription d{
        .rows = 2, .in_features = 8, .out_features = 8, .bias = false, .inference = true, .fp32_output = true};
    EXPECT_NO_THROW((void)backend->make(d)) << name;
    d.bias = true;
    EXPECT_THROW((void)backend->make(d), Error) << name;
    d.bias = false;
    d.inference = false;
    EXPECT_THROW((void)backend->make(d), Error) << name;
  }
}

}  // namespace
}  // namespace lockstep::test

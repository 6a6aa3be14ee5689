// The last matmul and the cross entropy of the backends, compared with the reference; the reference, compared with
// finite differences.
#include "test/reference/linear_cross_entropy.h"

#include <gtest/gtest.h>

#include <cmath>

#include "lockstep/ops/cross_entropy.h"
#include "test/reference/backend.h"
#include "test/support/clip_coefficient.h"
#include "test/support/compare.h"
#include "test/support/device.h"
#include "test/support/finite_difference.h"
#include "test/support/tensor.h"

namespace lockstep::test {
namespace {

struct Case {
  std::int64_t rows, width, vocabulary;
  std::int64_t chunk_rows = 0;
  int ignored_every = 0;  // one in this many targets is negative; 0: none
};
/// One class; one chunk; chunks of equal size; a shorter last chunk; rows of logits that do not fill vectors; several
/// blocks of the CPU's sums, and more classes than a GPU's block has threads; nothing counted; and rows of which a GPU
/// keeps only a part in 48 KiB of shared memory, aligned to 16 bytes and not.
const Case kCases[] = {{1, 1, 1},         {5, 8, 3},           {12, 16, 40, 4},       {13, 24, 37, 5, 3},
                       {7, 33, 130, 3},   {6, 20, 1064, 4, 2}, {9, 12, 4096 + 19, 4}, {4, 10, 21, 2, 1},
                       {40, 64, 256, 16}, {3, 1, 33'000, 2},   {2, 1, 25'001}};
constexpr std::int64_t kManyClasses = 10'000;
constexpr DType kTypes[] = {DType::fp32, DType::bf16, DType::fp16};
constexpr float kLossWeight = 1.0f / 48;

LinearCrossEntropyDescription describe(const Case& c, DType dtype = DType::fp32) {
  return {.rows = c.rows, .width = c.width, .vocabulary = c.vocabulary, .dtype = dtype, .chunk_rows = c.chunk_rows};
}

struct Inputs {
  Inputs(const Case& c, DType dtype)
      : x(random_normal(c.rows * c.width, 1)),
        weight(random_normal(c.vocabulary * c.width, 2)),
        dweight_before(random_normal(c.vocabulary * c.width, 3)) {
    for (float& value : weight) value /= std::sqrt(static_cast<float>(c.width));  // logits of order 1
    for (std::int64_t row = 0; row < c.rows; ++row) {
      const bool ignored = c.ignored_every > 0 && row % c.ignored_every == 0;
      targets.push_back(ignored ? -1 : static_cast<std::int32_t>((row * 7 + 2) % c.vocabulary));
      if (ignored || row % 2 == 0) continue;
      // Every other row predicts its target.
      for (std::int64_t i = 0; i < c.width; ++i)
        x[static_cast<std::size_t>(row * c.width + i)] =
            3 * weight[static_cast<std::size_t>(targets.back() * c.width + i)];
    }
    // Every type represents these logits exactly.
    for (std::size_t row = 0; c.width == 1 && row < x.size(); ++row) x[row] = row % 2 == 0 ? 1 : -2;
    x = rounded_to(dtype, x);
    weight = rounded_to(dtype, weight);
  }
  std::vector<float> x, weight, dweight_before;
  std::vector<std::int32_t> targets;
};

struct Outputs {
  LossSums sums;
  std::vector<float> losses, dx, dweight;  // dx and dweight: empty without gradients
};

struct Modes {
  GradientMode sums = GradientMode::overwrite, dweight = GradientMode::overwrite;
  float loss_scale = 0;  // 0: no scaling
};

Outputs run(Backend& backend, const LinearCrossEntropyDescription& d, const Inputs& in, const Modes& modes = {}) {
  Device device(backend);
  const auto op = backend.make(d);
  const OpMemory memory = device.op_memory(op->memory_requirements());
  LinearCrossEntropy::Forward args;
  args.x = device.upload_as(d.dtype, in.x);
  args.weight = device.upload_as(d.dtype, in.weight);
  args.targets = device.upload(in.targets);
  args.sums = modes.sums == GradientMode::accumulate ? device.upload(std::vector<LossSums>{{100, 10, 1, 0.5}})
                                                     : device.garbage<LossSums>(1);
  args.sums_mode = modes.sums;
  args.losses = device.garbage<float>(in.targets.size());
  if (d.has_gradients()) {
    StepScalars scalars;
    scalars.loss_weight = kLossWeight;
    args.scalars = device.upload(std::vector<StepScalars>{scalars});
    if (modes.loss_scale > 0) args.loss_scale = device.upload(std::vector<LossScale>{{.scale = modes.loss_scale}});
    if (d.input_gradient) args.dx = device.garbage_as(d.dtype, in.x.size());
    args.dweight = modes.dweight == GradientMode::overwrite ? device.garbage_as(d.gradient_dtype, in.weight.size())
                                                            : device.upload_as(d.gradient_dtype, in.dweight_before);
    args.dweight_mode = d.weight_gradient ? modes.dweight : GradientMode::skip;
  }
  op->forward(args, memory, device.stream());
  Outputs out{device.download(args.sums, 1)[0], device.download(args.losses, in.targets.size()), {}, {}};
  if (args.dx != nullptr) out.dx = device.download_as(d.dtype, args.dx, in.x.size());
  if (d.has_gradients() && d.weight_gradient)
    out.dweight = device.download_as(d.gradient_dtype, args.dweight, in.weight.size());
  return out;
}

double roundoff_of(DType dtype) {
  return dtype == DType::bf16 ? kBf16Roundoff : dtype == DType::fp16 ? kFp16Roundoff : kRoundoff;
}

/// A GPU rounds logits to the type if it computes gradients.
bool rounds_logits(const Backend& backend, DType dtype) { return backend.name() == "cuda" && dtype != DType::fp32; }

/// The sums of absolute values that make up the gradients. Each of their terms has the relative error of dlogits.
struct Magnitudes {
  std::vector<double> dx, dweight;
  double logits = 0;  // the greatest absolute value
};
Magnitudes magnitudes(const Case& c, const Inputs& in, double loss_weight) {
  // |softmax - q| is at most 1, and its sum over a row at most 2; a tight enough bound needs the softmax itself.
  Magnitudes out{std::vector<double>(in.x.size()), std::vector<double>(in.weight.size()), 0};
  for (std::size_t row = 0; row < in.targets.size(); ++row) {
    if (in.targets[row] < 0) continue;
    const auto width = static_cast<std::size_t>(c.width);
    std::vector<double> logits(static_cast<std::size_t>(c.vocabulary));
    for (std::size_t k = 0; k < logits.size(); ++k)
      for (std::size_t i = 0; i < width; ++i) logits[k] += double{in.x[row * width + i]} * in.weight[k * width + i];
    const double greatest = *std::ranges::max_element(logits);
    double sum = 0;
    for (const double logit : logits) sum += std::exp(logit - greatest);
    for (std::size_t k = 0; k < logits.size(); ++k) {
      const double softmax = std::exp(logits[k] - greatest) / sum;
      out.logits = std::max(out.logits, std::abs(logits[k]));
      const double terms = loss_weight * (softmax + (static_cast<std::int32_t>(k) == in.targets[row] ? 1 : 0));
      for (std::size_t i = 0; i < width; ++i) {
        out.dx[row * width + i] += terms * std::abs(in.weight[k * width + i]);
        out.dweight[k * width + i] += terms * std::abs(in.x[row * width + i]);
      }
    }
  }
  return out;
}

TEST(LinearCrossEntropy, AgreesWithTheReference) {
  reference::ReferenceBackend reference;
  for (const Case& c : kCases)
    for (const DType dtype : kTypes)
      for (const GradientMode mode : {GradientMode::overwrite, GradientMode::accumulate}) {
        const Inputs in(c, dtype);
        const Outputs expected = run(reference, describe(c), in, {mode, mode});
        const Magnitudes magnitude = magnitudes(c, in, kLossWeight);
        for (auto& [name, backend] : tested_backends()) {
          if (!computes_in(*backend, dtype)) continue;
          SCOPED_TRACE(fmt::format("{}, ({}, {}) over {} in chunks of {}, {}, {}", name, c.rows, c.width, c.vocabulary,
                                   c.chunk_rows, lockstep::name(dtype), text(mode)));
          const Outputs actual = run(*backend, describe(c, dtype), in, {mode, mode});
          EXPECT_EQ(actual.sums.correct, expected.sums.correct);
          EXPECT_EQ(actual.sums.count, expected.sums.count);
          EXPECT_EQ(actual.sums.weight, expected.sums.weight);
          // A logit is a sum of `width` products, together at most 20, and may be rounded. An exponential turns its
          // error into a relative error.
          const auto width = static_cast<double>(c.width), vocabulary = static_cast<double>(c.vocabulary);
          const double of_rounding =
              c.width > 1 && rounds_logits(*backend, dtype) ? roundoff_of(dtype) * magnitude.logits : 0;
          const double of_logits = kRoundoff * 20 * (width + 4) + of_rounding;
          for (std::size_t row = 0; row < in.targets.size(); ++row)
            ASSERT_NEAR(actual.losses[row], expected.losses[row], 2 * of_logits + kRoundoff * expected.losses[row])
                << row;
          EXPECT_NEAR(actual.sums.loss, expected.sums.loss, 2 * of_logits * static_cast<double>(c.rows) + 1e-12);
          // dlogits are rounded to the type, and so is dx. The smallest fp16 numbers are 2^-24 apart.
          const double least = dtype == DType::fp16 ? 0x1p-25 : 0;
          const double of_dlogits = 2 * of_logits + roundoff_of(dtype) + 8 * kRoundoff;
          for (std::size_t i = 0; i < expected.dx.size(); ++i)
            ASSERT_NEAR(actual.dx[i], expected.dx[i],
                        magnitude.dx[i] * (of_dlogits + vocabulary * kRoundoff) +
                            roundoff_of(dtype) * std::abs(expected.dx[i]) + 4 * least * (vocabulary + 1))
                << "dx " << i;
          for (std::size_t i = 0; i < expected.dweight.size(); ++i)
            ASSERT_NEAR(actual.dweight[i], expected.dweight[i],
                        magnitude.dweight[i] * (of_dlogits + (static_cast<double>(c.rows) + 1) * kRoundoff) +
                            4 * kRoundoff * std::abs(in.dweight_before[i]) + 4 * least * static_cast<double>(c.rows))
                << "dweight " << i;
        }
      }
}

/// The op gives the same results as a matmul and a cross entropy, chunk by chunk.
TEST(LinearCrossEntropy, ChunksDoNotMatter) {
  const Case c{23, 24, 300, 0, 4};
  const Inputs in(c, DType::fp32);
  for (auto& [name, backend] : tested_backends()) {
    const Outputs whole = run(*backend, describe(c), in);
    for (const std::int64_t chunk_rows : {1, 7, 22, 100}) {
      LinearCrossEntropyDescription d = describe(c);
      d.chunk_rows = chunk_rows;
      const Outputs out = run(*backend, d, in);
      EXPECT_NEAR(out.sums.loss, whole.sums.loss, 1e-5) << name;
      EXPECT_TRUE(near(out.losses, whole.losses, 1e-6)) << name << ", " << chunk_rows;
      EXPECT_TRUE(near(out.dx, whole.dx, 1e-5)) << name << ", " << chunk_rows;
      EXPECT_TRUE(near(out.dweight, whole.dweight, 1e-5)) << name << ", " << chunk_rows;
    }
  }
}

/// At most 16 Mi logits, in chunks of almost equal size; or of a multiple of rows, where that fits.
/// On the CPU, chunks are summed in fp32 and rounded once; on a GPU, the sum is rounded after each chunk.
TEST(LinearCrossEntropy, AGradientInBf16IsTheRoundedSum) {
  for (const Case& c : kCases)
    for (auto& [name, backend] : tested_backends()) {
      if (!computes_in(*backend, DType::bf16)) continue;
      Inputs in(c, DType::bf16);
      in.dweight_before = rounded_to(DType::bf16, in.dweight_before);
      LinearCrossEntropyDescription d = describe(c, DType::bf16);
      for (const GradientMode mode : {GradientMode::overwrite, GradientMode::accumulate}) {
        d.gradient_dtype = DType::fp32;
        const std::vector<float> wide = run(*backend, d, in, {.dweight = mode}).dweight;
        d.gradient_dtype = DType::bf16;
        const std::vector<float> narrow = run(*backend, d, in, {.dweight = mode}).dweight;
        const double n_chunks = backend->name() == "cpu" || d.chunk_rows == 0
                                    ? 1
                                    : std::ceil(static_cast<double>(d.rows) / static_cast<double>(d.chunk_rows));
        double most = 0;
        for (const float value : wide) most = std::max(most, std::abs(double{value}));
        for (std::size_t i = 0; i < wide.size(); ++i)
          ASSERT_NEAR(narrow[i], wide[i], kBf16Roundoff * (1.01 * std::abs(wide[i]) + (n_chunks - 1) * most))
              << name << ", " << text(mode) << ", " << i;
      }
    }
}

TEST(LinearCrossEntropy, ChunksAreBounded) {
  LinearCrossEntropyDescription d{.rows = 2048, .width = 576, .vocabulary = 49152};
  constexpr std::int64_t kMost = 16 << 20;
  EXPECT_EQ(rows_per_chunk(d, kMost), 293);  // 7 chunks; 341 would fit
  EXPECT_EQ(rows_per_chunk(d, kMost, 32), 320);
  EXPECT_EQ(rows_per_chunk(d, kMost, 128), 293);  // 384 would not fit
  d.rows = 255;
  EXPECT_EQ(rows_per_chunk(d, kMost), 255);
  EXPECT_EQ(rows_per_chunk(d, kMost, 128), 255);
  d.vocabulary = 151936;
  EXPECT_EQ(rows_per_chunk(d, kMost), 85);
  d.vocabulary = 100'000'000;
  EXPECT_EQ(rows_per_chunk(d, kMost), 1);
  d.chunk_rows = 1000;
  EXPECT_EQ(rows_per_chunk(d, kMost), 255);
}

/// Without gradients, only the loss is computed, and it has the same bits unless logits are rounded.
TEST(LinearCrossEntropy, GradientsAreOptional) {
  const Case c{13, 24, 37, 5, 3};
  for (const DType dtype : kTypes)
    for (auto& [name, backend] : tested_backends()) {
      if (!computes_in(*backend, dtype)) continue;
      const Inputs in(c, dtype);
      const Outputs all = run(*backend, describe(c, dtype), in);
      LinearCrossEntropyDescription d = describe(c, dtype);
      d.inference = true;
      const Outputs inference = run(*backend, d, in);
      const double of_rounding =
          rounds_logits(*backend, dtype) ? 2 * roundoff_of(dtype) * magnitudes(c, in, 1).logits : 0;
      EXPECT_NEAR(inference.sums.loss, all.sums.loss, of_rounding * static_cast<double>(c.rows)) << name;
      EXPECT_TRUE(near(inference.losses, all.losses, of_rounding)) << name;
      d.inference = false;
      d.input_gradient = false;
      EXPECT_EQ(run(*backend, d, in).dweight, all.dweight) << name;
      d.input_gradient = true;
      d.weight_gradient = false;
      EXPECT_EQ(run(*backend, d, in).dx, all.dx) << name;
    }
}

/// A power of two changes only the exponent; the loss is not scaled.
TEST(LinearCrossEntropy, LossScale) {
  const Case c{13, 24, 37, 5, 3};
  for (auto& [name, backend] : tested_backends()) {
    const Inputs in(c, DType::fp32);
    const Outputs plain = run(*backend, describe(c), in),
                  scaled = run(*backend, describe(c), in, {.loss_scale = 65536});
    EXPECT_EQ(scaled.sums.loss, plain.sums.loss) << name;
    for (std::size_t i = 0; i < plain.dx.size(); ++i) ASSERT_EQ(scaled.dx[i], 65536 * plain.dx[i]) << name;
    for (std::size_t i = 0; i < plain.dweight.size(); ++i)
      ASSERT_EQ(scaled.dweight[i], 65536 * plain.dweight[i]) << name;
  }
}

/// Rows that are not counted have neither loss nor gradient.
TEST(LinearCrossEntropy, IgnoredTargets) {
  const Case c{4, 10, 21, 2, 1};
  for (auto& [name, backend] : tested_backends()) {
    const Outputs out = run(*backend, describe(c), Inputs(c, DType::fp32));
    EXPECT_EQ(out.sums.loss, 0.0) << name;
    EXPECT_EQ(out.sums.count, 0.0) << name;
    EXPECT_EQ(out.sums.weight, 0.0) << name;
    EXPECT_EQ(out.sums.correct, 0.0) << name;
    for (const auto* values : {&out.losses, &out.dx, &out.dweight})
      for (const float value : *values) ASSERT_EQ(value, 0.0f) << name;
  }
}

/// Among equal logits, the first counts as the prediction, wherever a GPU's threads find the others: in the same 16
/// bytes, in another thread, and in the same thread in later packs and groups of packs.
TEST(LinearCrossEntropy, TiesGoToTheFirst) {
  for (const DType dtype : {DType::fp32, DType::bf16})
    for (const std::int64_t distance : {1, 8, 512, 8 * 512, 4 * 8 * 512})
      for (const std::int64_t vocabulary : {20'000, 20'001}) {
        const Case c{3, 1, vocabulary};
        Inputs in(c, dtype);
        in.x = {1, 1, 1};
        std::ranges::fill(in.weight, 0.0f);
        in.targets = {1000, static_cast<std::int32_t>(1000 + distance), 0};
        in.weight[1000] = in.weight[static_cast<std::size_t>(1000 + distance)] = 1;
        for (auto& [name, backend] : tested_backends()) {
          if (!computes_in(*backend, dtype)) continue;
          EXPECT_EQ(run(*backend, describe(c, dtype), in).sums.correct, 1.0) << name << ", " << distance;
        }
      }
}

/// Logits of 1e4 overflow the exponential unless the maximum is subtracted first. A NaN must be visible in the loss.
TEST(LinearCrossEntropy, LargeLogits) {
  const Case c{3, 1, 3};
  Inputs in(c, DType::fp32);
  in.x = {10000, -10000, NAN};
  in.weight = {1, 0, -1};
  in.targets = {0, 0, 1};
  for (auto& [name, backend] : tested_backends()) {
    const Outputs out = run(*backend, describe(c), in);
    EXPECT_EQ(out.losses[0], 0.0f) << name;
    EXPECT_EQ(out.losses[1], 20000.0f) << name;
    EXPECT_TRUE(std::isnan(out.losses[2])) << name;
    EXPECT_TRUE(std::isnan(out.sums.loss)) << name;
    EXPECT_EQ(out.sums.correct, 1.0) << name;
    EXPECT_FALSE(std::isnan(out.dx[0]) || std::isnan(out.dx[1])) << name;
  }
}

/// The gradient that an update uses is that of the mean over the counted rows, whatever number of rows the weight 1 /
/// 48 assumes.
TEST(LinearCrossEntropy, WithClipNormItIsTheGradientOfTheMeanLoss) {
  const Case c{13, 8, 37, 5, 3};
  for (auto& [name, backend] : tested_backends()) {
    const Inputs in(c, DType::fp32);
    const Outputs out = run(*backend, describe(c), in);
    const double coefficient = clip_coefficient(*backend, out.dweight, out.sums, /*nominal_count=*/48);
    std::vector<double> x = to_double(in.x), weight = to_double(in.weight), gradient;
    for (const float g : out.dweight) gradient.push_back(coefficient * g);
    EXPECT_TRUE(gradient_matches(
        weight, gradient,
        [&] {
          const LossSums sums = reference::linear_cross_entropy<double>(
              describe(c), {.x = x.data(), .weight = weight.data(), .targets = in.targets.data()});
          return sums.loss / sums.count;
        },
        2e-6))  // rounding to fp32, and rounding of exponentials
        << name;
  }
}

TEST(LinearCrossEntropy, RejectsImpossibleDescriptions) {
  for (auto& [name, backend] : tested_backends()) {
    const LinearCrossEntropyDescription good{.rows = 4, .width = 4, .vocabulary = 4};
    for (auto member : {&LinearCrossEntropyDescription::rows, &LinearCrossEntropyDescription::width,
                        &LinearCrossEntropyDescription::vocabulary, &LinearCrossEntropyDescription::chunk_rows}) {
      LinearCrossEntropyDescription d = good;
      d.*member = -1;
      EXPECT_THROW((void)backend->make(d), Error) << name;
    }
    LinearCrossEntropyDescription d = good;
    d.dtype = DType::int32;
    EXPECT_THROW((void)backend->make(d), Error) << name;
  }
}

TEST(LinearCrossEntropy, AgreesWithFiniteDifferences) {
  for (const Case& c : kCases) {
    if (c.vocabulary > kManyClasses) continue;
    SCOPED_TRACE(Shape({c.rows, c.width, c.vocabulary}).text());
    const Inputs in(c, DType::fp32);
    std::vector<double> x = to_double(in.x), weight = to_double(in.weight), dx(x.size()), dweight(weight.size());
    reference::linear_cross_entropy<double>(describe(c), {.x = x.data(),
                                                          .weight = weight.data(),
                                                          .targets = in.targets.data(),
                                                          .loss_weight = 1,
                                                          .dx = dx.data(),
                                                          .dweight = dweight.data(),
                                                          .dweight_mode = GradientMode::overwrite});
    const auto loss = [&] {
      return reference::linear_cross_entropy<double>(
                 describe(c), {.x = x.data(), .weight = weight.data(), .targets = in.targets.data()})
          .loss;
    };
    EXPECT_TRUE(gradient_matches(x, dx, loss)) << "x";
    EXPECT_TRUE(gradient_matches(weight, dweight, loss)) << "weight";
  }
}

}  // namespace
}  // namespace lockstep::test

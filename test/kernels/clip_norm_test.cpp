// The global gradient norm and the clipping coefficient of the cpu backend, compared with the reference.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "lockstep/ops/clip_norm.h"
#include "test/reference/backend.h"
#include "test/support/device.h"
#include "test/support/tensor.h"

namespace lockstep::test {
namespace {

struct Case {
  std::size_t n_elements;
  float max_norm;
};

constexpr std::int64_t kElements = 20657;
constexpr Case kCases[] = {{kElements, 0}, {kElements, 1}, {kElements, 1e6f}, {1, 0.5f}, {4096, 10}, {20481, 10}};

struct Outputs {
  StepScalars scalars;
  double norm = 0;
  LossScale loss_scale{};
};

constexpr LossSums kSums{.loss = 12, .correct = 0, .count = 5, .weight = 4};

Outputs run(Backend& backend, const Case& c, const std::vector<float>& gradients, const LossSums& sums = kSums,
            float loss_limit = std::numeric_limits<float>::infinity(), const LossScale* loss_scale = nullptr,
            const LossScaling& loss_scaling = {}, double nominal_count = kSums.weight) {
  Device device(backend);
  const auto op = backend.make(
      ClipNormDescription{.n_elements = c.n_elements, .max_norm = c.max_norm, .loss_scaling = loss_scaling});
  StepScalars scalars;
  scalars.learning_rate = 0.125f;
  scalars.clip_coefficient = -1;
  scalars.loss_limit = loss_limit;
  scalars.nominal_count = nominal_count;
  scalars.is_applied = 17;
  scalars.step = 42;
  ClipNorm::Apply args;
  double* const tile_sums = device.garbage<double>(n_tiles_of(c.n_elements));
  op->sum_tiles({.gradients = device.upload(gradients), .tile_sums = tile_sums, .range = {0, c.n_elements}},
                device.stream());
  args.tile_sums = tile_sums;
  args.sums = device.upload(std::vector<LossSums>{sums});
  args.scalars = device.upload(std::vector<StepScalars>{scalars});
  args.norm = device.garbage<double>(1);
  if (loss_scale) args.loss_scale = device.upload(std::vector<LossScale>{*loss_scale});
  op->apply(args, device.stream());
  Outputs out{device.download(args.scalars, 1)[0], device.download(args.norm, 1)[0]};
  if (loss_scale) out.loss_scale = device.download(args.loss_scale, 1)[0];
  return out;
}

TEST(ClipNorm, AgreesWithTheReference) {
  const std::vector<float> gradients = random_normal(kElements, 1);
  reference::ReferenceBackend reference;
  for (const Case& c : kCases) {
    const Outputs expected = run(reference, c, gradients);
    for (auto& [name, backend] : tested_backends()) {
      const Outputs actual = run(*backend, c, gradients);
      // Sums of 20,000 squares in fp64, in any order: an error of at most 20,000 * 2^-53 = 2e-12.
      EXPECT_NEAR(actual.norm, expected.norm, 2e-12 * expected.norm) << name;
      // One rounding to fp32.
      EXPECT_NEAR(actual.scalars.clip_coefficient, expected.scalars.clip_coefficient, 1e-7) << name;
      EXPECT_EQ(actual.scalars.learning_rate, 0.125f) << name << ": only the coefficient is written";
      EXPECT_EQ(actual.scalars.step, 42u) << name << ": only the coefficient is written";
    }
  }
}

TEST(ClipNorm, KnownValues) {
  std::vector<float> gradients(kElements);
  for (auto& [name, backend] : tested_backends()) {
    EXPECT_EQ(run(*backend, kCases[1], gradients).norm, 0.0) << name;
    EXPECT_EQ(run(*backend, kCases[1], gradients).scalars.clip_coefficient, 1.0f) << name;
  }
  gradients[16] = 3;
  gradients[700] = 4;
  for (auto& [name, backend] : tested_backends()) {
    const Outputs clipped = run(*backend, kCases[1], gradients);
    EXPECT_EQ(clipped.norm, 5.0) << name;
    // max_norm / (norm + 1e-6), as in PyTorch; one rounding to fp32.
    EXPECT_NEAR(clipped.scalars.clip_coefficient, 1.0 / (5.0 + 1e-6), 1.2e-8) << name;
    EXPECT_EQ(run(*backend, kCases[0], gradients).scalars.clip_coefficient, 1.0f) << name << ": 0 is no limit";
    EXPECT_EQ(run(*backend, kCases[2], gradients).scalars.clip_coefficient, 1.0f) << name << ": below the limit";
  }
}

/// If anything is infinite or NaN, or the mean loss over the samples exceeds the limit, the step must not be applied.
TEST(ClipNorm, DecidesWhetherTheStepIsApplied) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity(), kNan = std::numeric_limits<float>::quiet_NaN();
  reference::ReferenceBackend reference;
  const auto applied = [&](Backend& backend, const Case& c, float gradient, double loss, float limit) {
    std::vector<float> gradients = random_normal(kElements, 3);
    gradients[20000] = gradient;
    return run(backend, c, gradients, {.loss = loss, .correct = 0, .count = 5, .weight = 4}, limit).scalars.is_applied;
  };
  const auto expect_everywhere = [&](std::uint32_t expected, float gradient, double loss, float limit) {
    for (const Case& c : {kCases[0], kCases[1]}) {
      EXPECT_EQ(applied(reference, c, gradient, loss, limit), expected) << gradient << ", " << loss << ", " << limit;
      for (auto& [name, backend] : tested_backends())
        EXPECT_EQ(applied(*backend, c, gradient, loss, limit), expected)
            << name << ": " << gradient << ", " << loss << ", " << limit;
    }
  };
  expect_everywhere(1, 1, 12, kInfinity);
  expect_everywhere(1, 3e38f, 12, kInfinity);  // the square is finite in fp64
  expect_everywhere(0, kNan, 12, kInfinity);
  expect_everywhere(0, -kInfinity, 12, kInfinity);
  expect_everywhere(0, 1, std::numeric_limits<double>::quiet_NaN(), kInfinity);
  expect_everywhere(0, 1, std::numeric_limits<double>::infinity(), kInfinity);
  expect_everywhere(1, 1, 12, 3);
  expect_everywhere(0, 1, 12, 2.9f);
}

std::vector<std::pair<std::string, Backend*>> all_backends(Backend& reference) {
  std::vector<std::pair<std::string, Backend*>> all{{"reference", &reference}};
  for (auto& [name, backend] : tested_backends()) all.emplace_back(name, backend.get());
  return all;
}

/// Gradients multiplied by a power of two have exactly the same norm after unscaling, and clip to the same gradients.
TEST(ClipNorm, DividesByTheLossScale) {
  const std::vector<float> gradients = random_normal(kElements, 1);
  std::vector<float> scaled = gradients;
  for (float& g : scaled) g *= 65536;
  const LossScale loss_scale{.scale = 65536, .good_steps = 3};
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  reference::ReferenceBackend reference;
  for (const Case& c : kCases)
    for (const auto& [name, backend] : all_backends(reference)) {
      const Outputs plain = run(*backend, c, gradients);
      const Outputs out = run(*backend, c, scaled, kSums, kInfinity, &loss_scale);
      EXPECT_EQ(out.norm, plain.norm) << name;
      EXPECT_EQ(65536 * out.scalars.clip_coefficient, plain.scalars.clip_coefficient) << name;
      EXPECT_EQ(out.scalars.is_applied, 1u) << name;
      EXPECT_EQ(out.loss_scale.scale, 65536.0f) << name;
      EXPECT_EQ(out.loss_scale.good_steps, 4u) << name;
    }
}

/// If a step counts 4 samples but was weighted for 16, its gradients are four times as large, before and after
/// clipping; the loss is a mean over the 4.
TEST(ClipNorm, CorrectsForTheNumberOfCountedSamples) {
  const std::vector<float> gradients = random_normal(kElements, 1);
  std::vector<float> larger = gradients;
  for (float& g : larger) g *= 4;
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  reference::ReferenceBackend reference;
  for (const Case& c : kCases)
    for (const auto& [name, backend] : all_backends(reference)) {
      const Outputs expected = run(*backend, c, larger);
      const Outputs out = run(*backend, c, gradients, kSums, kInfinity, nullptr, {}, 16);
      EXPECT_EQ(out.norm, expected.norm) << name;  // powers of two change no bit
      EXPECT_EQ(out.scalars.clip_coefficient, 4 * expected.scalars.clip_coefficient) << name;
      EXPECT_EQ(out.scalars.is_applied, 1u) << name;
      EXPECT_EQ(run(*backend, c, gradients, kSums, 2.9f, nullptr, {}, 16).scalars.is_applied, 0u) << name;
      EXPECT_EQ(run(*backend, c, gradients, kSums, 3, nullptr, {}, 16).scalars.is_applied, 1u) << name;
    }
}

/// Without counted samples there is nothing to learn: the step is not applied, and this does not count as an overflow.
TEST(ClipNorm, AStepWithoutCountedSamplesIsNotApplied) {
  const LossSums nothing{};
  const LossScale loss_scale{.scale = 1024, .good_steps = 3};
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  reference::ReferenceBackend reference;
  for (const auto& [name, backend] : all_backends(reference))
    for (const Case& c : {kCases[0], kCases[1]}) {
      const Outputs out = run(*backend, c, std::vector<float>(kElements), nothing, kInfinity, &loss_scale);
      EXPECT_EQ(out.scalars.is_applied, 0u) << name;
      EXPECT_EQ(out.loss_scale.scale, 1024.0f) << name;
      EXPECT_EQ(out.loss_scale.good_steps, 4u) << name;
    }
}

/// The scale is halved after an overflow and doubled after the configured number of steps without one, within its
/// bounds.
TEST(ClipNorm, UpdatesTheLossScale) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity(), kNan = std::numeric_limits<float>::quiet_NaN();
  struct Row {
    LossScale before;
    float gradient;
    double loss;
    LossScale after;
    std::uint32_t is_applied;
  };
  const Row rows[] = {{{1024, 0}, 1, 12, {1024, 1}, 1},        {{1024, 4}, 1, 12, {2048, 0}, 1},
                      {{4096, 4}, 1, 12, {6000, 0}, 1},                                              // the maximum
                      {{1024, 4}, kInfinity, 12, {512, 0}, 0},                                       // an overflow
                      {{1024, 0}, kNan, 12, {512, 0}, 0},      {{6, 2}, -kInfinity, 12, {4, 0}, 0},  // the minimum
                      {{1024, 2}, 1, kNan, {1024, 3}, 0},   // a loss that is NaN is not caused by the scale
                      {{1024, 4}, 1, 1000, {2048, 0}, 0}};  // nor is a spike
  const LossScaling scaling{.growth_steps = 5, .min_scale = 4, .max_scale = 6000};
  const LossScaling constant{.growth_steps = 0};
  reference::ReferenceBackend reference;
  for (const Row& row : rows)
    for (const auto& [name, backend] : all_backends(reference)) {
      std::vector<float> gradients = random_normal(kElements, 3);
      gradients[20000] = row.gradient;
      const LossSums sums{.loss = row.loss, .correct = 0, .count = 5, .weight = 4};
      const auto after = [&](const LossScaling& s) {
        return run(*backend, kCases[0], gradients, sums, 100, &row.before, s);
      };
      const Outputs out = after(scaling), kept = after(constant);
      const std::string place = fmt::format("{}, {} {}, gradient {}, loss {}", name, row.before.scale,
                                            row.before.good_steps, row.gradient, row.loss);
      EXPECT_EQ(out.loss_scale.scale, row.after.scale) << place;
      EXPECT_EQ(out.loss_scale.good_steps, row.after.good_steps) << place;
      EXPECT_EQ(out.scalars.is_applied, row.is_applied) << place;
      EXPECT_EQ(kept.loss_scale.scale, row.before.scale) << place;
      EXPECT_EQ(kept.scalars.is_applied, row.is_applied) << place;
    }
}

/// 1e30 squared overflows fp32: the squares must be fp64.
TEST(ClipNorm, LargeGradients) {
  std::vector<float> gradients(kElements);
  gradients[64] = 3e30f;
  gradients[65] = 4e30f;
  for (auto& [name, backend] : tested_backends())
    EXPECT_NEAR(run(*backend, kCases[1], gradients).norm, 5e30, 1e-7 * 5e30) << name;  // the inputs are fp32
}

/// Whether the memory can be read with vectors does not change the order of the sum.
TEST(ClipNorm, OfGradientsAtAnyAlignment) {
  for (auto& [name, backend] : tested_backends()) {
    const std::vector<float> gradients = random_normal(kElements, 5);
    std::vector<float> behind(3);
    behind.insert(behind.end(), gradients.begin(), gradients.end());
    Device device(*backend);
    const auto op = backend->make(ClipNormDescription{.n_elements = kElements});
    const auto sums_of = [&](const float* on_device) {
      double* const tile_sums = device.garbage<double>(n_tiles_of(kElements));
      op->sum_tiles({.gradients = on_device, .tile_sums = tile_sums, .range = {0, kElements}}, device.stream());
      return device.download(tile_sums, n_tiles_of(kElements));
    };
    EXPECT_EQ(sums_of(device.upload(behind) + 3), sums_of(device.upload(gradients))) << name;
  }
}

/// If tiles are summed beforehand, in any order of ranges, the result has the bits of summing everything at once.
TEST(ClipNorm, SumsTilesRangeByRange) {
  const std::vector<float> gradients = random_normal(kElements, 4);
  constexpr std::size_t kBegins[] = {0, kTileElements, 4 * kTileElements, kElements};
  reference::ReferenceBackend reference;
  for (const auto& [name, backend] : all_backends(reference)) {
    const Outputs expected = run(*backend, kCases[1], gradients);
    Device device(*backend);
    const auto op = backend->make(ClipNormDescription{.n_elements = kElements, .max_norm = 1});
    StepScalars scalars;
    scalars.nominal_count = kSums.weight;
    ClipNorm::Apply args;
    double* const tile_sums = device.garbage<double>(n_tiles_of(kElements));
    const float* const on_device = device.upload(gradients);
    for (const std::size_t range : {std::size_t{2}, std::size_t{0}, std::size_t{1}})
      op->sum_tiles({.gradients = on_device + kBegins[range],
                     .tile_sums = tile_sums,
                     .range = {kBegins[range], kBegins[range + 1] - kBegins[range]}},
                    device.stream());
    args.tile_sums = tile_sums;
    args.sums = device.upload(std::vector<LossSums>{kSums});
    args.scalars = device.upload(std::vector<StepScalars>{scalars});
    args.norm = device.garbage<double>(1);
    op->apply(args, device.stream());
    EXPECT_EQ(device.download(args.norm, 1)[0], expected.norm) << name;
    EXPECT_EQ(device.download(args.scalars, 1)[0].clip_coefficient, expected.scalars.clip_coefficient) << name;
  }
}

/// Gradients in bf16 have the norm of the same values in fp32.
TEST(ClipNorm, OfGradientsInBf16) {
  const std::vector<float> gradients = rounded_to(DType::bf16, random_normal(kElements, 4));
  for (auto& [name, backend] : tested_backends()) {
    if (!computes_in(*backend, DType::bf16)) continue;
    const Outputs expected = run(*backend, kCases[1], gradients);
    Device device(*backend);
    const auto op = backend->make(ClipNormDescription{.n_elements = kElements});
    double* const tile_sums = device.garbage<double>(n_tiles_of(kElements));
    for (const ElementRange& range : {ElementRange{0, kTileElements}, {kTileElements, kElements - kTileElements}}) {
      const auto first = gradients.begin() + static_cast<std::ptrdiff_t>(range.begin);
      const std::vector<float> values(first, first + static_cast<std::ptrdiff_t>(range.n_elements));
      op->sum_tiles(
          {.gradients = {device.upload_as(DType::bf16, values), DType::bf16}, .tile_sums = tile_sums, .range = range},
          device.stream());
    }
    StepScalars scalars;
    scalars.nominal_count = kSums.weight;
    ClipNorm::Apply args{.tile_sums = tile_sums,
                         .sums = device.upload(std::vector<LossSums>{kSums}),
                         .scalars = device.upload(std::vector<StepScalars>{scalars}),
                         .norm = device.garbage<double>(1)};
    op->apply(args, device.stream());
    EXPECT_NEAR(device.download(args.norm, 1)[0], expected.norm, 1e-12 * expected.norm) << name;
  }
}

/// The order is fixed: 1 and 2 threads give the same bits, so that ranks with different numbers of threads clip
/// equally.
TEST(ClipNorm, SameBitsOnAnyNumberOfThreads) {
  if (!is_tested_device("cpu")) GTEST_SKIP() << "it tests the cpu backend";
  const std::vector<float> gradients = random_normal(kElements, 2);
  for (const Case& c : kCases)
    EXPECT_EQ(run(*tested_backends()[0].backend, c, gradients).norm,
              run(*tested_backends()[1].backend, c, gradients).norm);
}

}  // namespace
}  // namespace lockstep::test

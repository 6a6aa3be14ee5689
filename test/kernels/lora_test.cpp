// Low-rank adapters of the backends, compared with the reference; the reference, compared with finite differences.
#include "test/reference/lora.h"

#include <gtest/gtest.h>

#include "test/reference/backend.h"
#include "test/support/compare.h"
#include "test/support/device.h"
#include "test/support/finite_difference.h"
#include "test/support/tensor.h"

namespace lockstep::test {
namespace {

constexpr double kDropout = 0.3;

/// One element; all of y; q, k and v; parts that leave out columns; a row of more elements than blocks of Philox.
std::vector<LoraDescription> cases(double dropout) {
  std::vector<LoraDescription> out{
      {.rows = 1, .in_features = 1, .out_features = 1, .rank = 1, .parts = {{0, 1, 5}}},
      {.rows = 6, .in_features = 17, .out_features = 33, .rank = 3, .parts = {{0, 33, 5}}, .scale = 0.7f},
      {.rows = 30,
       .in_features = 64,
       .out_features = 96,
       .rank = 8,
       .parts = {{0, 64, 1}, {64, 16, 2}, {80, 16, 3}},
       .scale = 2},
      {.rows = 9, .in_features = 13, .out_features = 20, .rank = 2, .parts = {{3, 5, 8}, {12, 7, 9}}, .scale = 16},
      {.rows = 70, .in_features = 300, .out_features = 40, .rank = 4, .parts = {{0, 20, 4}, {20, 20, 6}}}};
  for (LoraDescription& d : out) {
    d.dropout = dropout;
    d.seed = 3;
    d.tokens = d.rows % 3 == 0 ? 3 : d.rows;
  }
  return out;
}

struct Inputs {
  explicit Inputs(const LoraDescription& d)
      : x(random_normal(d.rows * d.in_features, 1)),
        a(random_normal(d.ranks() * d.in_features, 2)),
        b(random_normal(d.columns() * d.rank, 3)),
        y(random_normal(d.rows * d.out_features, 4)),
        dy(random_normal(d.rows * d.out_features, 5)),
        dx(random_normal(d.rows * d.in_features, 6)),
        da(random_normal(d.ranks() * d.in_features, 7)),
        db(random_normal(d.columns() * d.rank, 8)) {
    for (std::int64_t n = 0; n < d.rows / d.tokens; ++n) ids.push_back(static_cast<std::uint32_t>(1000003 * n + 17));
  }
  Inputs positive() const {
    Inputs in = *this;
    for (auto* values : {&in.x, &in.a, &in.b, &in.y, &in.dy, &in.dx, &in.da, &in.db}) *values = absolute(*values);
    return in;
  }
  std::vector<float> x, a, b, y, dy, dx, da, db;  // the gradients: before
  std::vector<std::uint32_t> ids;
};

struct Outputs {
  std::vector<float> y, dx, da, db;
};

Outputs run(Backend& backend, const LoraDescription& d, const Inputs& in, GradientMode mode, bool wants_dx = true,
            std::uint32_t epoch = 2) {
  Device device(backend);
  const auto op = backend.make(d);
  const OpMemory memory = device.op_memory(op->memory_requirements());
  StepScalars scalars;
  scalars.epoch = epoch;
  const Lora::Samples samples{.ids = device.upload(in.ids), .scalars = device.upload(std::vector{scalars})};
  const void *const x = device.upload_as(d.dtype, in.x), *const a = device.upload_as(d.dtype, in.a);
  const void* const b = device.upload_as(d.dtype, in.b);
  void* const y = device.upload_as(d.dtype, in.y);
  op->forward({.x = x, .a = a, .b = b, .y = y, .samples = samples}, memory, device.stream());
  Outputs out;
  out.y = device.download_as(d.dtype, y, in.y.size());
  if (d.inference) return out;
  Lora::Backward backward{.dy = device.upload_as(d.dtype, in.dy), .x = x, .a = a, .b = b, .samples = samples};
  const auto gradient = [&](const std::vector<float>& before) {
    return static_cast<float*>(mode == GradientMode::accumulate ? device.upload_as(DType::fp32, before)
                                                                : device.garbage_as(DType::fp32, before.size()));
  };
  backward.parameter_mode = mode;
  if (mode != GradientMode::skip) backward.da = gradient(in.da);
  if (mode != GradientMode::skip) backward.db = gradient(in.db);
  if (wants_dx) backward.dx = device.upload_as(d.dtype, in.dx);
  op->backward(backward, memory, device.stream());
  if (backward.dx != nullptr) out.dx = device.download_as(d.dtype, backward.dx, in.dx.size());
  if (backward.da != nullptr) out.da = device.download(backward.da, in.da.size());
  if (backward.db != nullptr) out.db = device.download(backward.db, in.db.size());
  return out;
}

/// The roundings of a sum: one per term, and those of the intermediate results that are stored in the type.
void expect_equal(const LoraDescription& d, const Outputs& actual, const Outputs& expected, const Outputs& magnitude,
                  double of_type) {
  const auto n = [](std::int64_t terms) { return static_cast<double>(terms) + 6; };
  const std::int64_t longest = std::max({d.rows, d.in_features, d.out_features});
  EXPECT_TRUE(within_rounding(actual.y, expected.y, magnitude.y, n(d.in_features + d.rank) + 4 * of_type)) << "y";
  EXPECT_TRUE(within_rounding(actual.dx, expected.dx, magnitude.dx, n(longest + d.rank) + 6 * of_type)) << "dx";
  EXPECT_TRUE(within_rounding(actual.da, expected.da, magnitude.da, n(2 * longest) + 4 * of_type)) << "dA";
  EXPECT_TRUE(within_rounding(actual.db, expected.db, magnitude.db, n(2 * longest) + 4 * of_type)) << "dB";
}

TEST(Lora, AgreesWithTheReference) {
  reference::ReferenceBackend reference;
  for (const double dropout : {0.0, kDropout})
    for (const LoraDescription& d : cases(dropout))
      for (const GradientMode mode : {GradientMode::overwrite, GradientMode::accumulate, GradientMode::skip}) {
        const Inputs in(d);
        const Outputs expected = run(reference, d, in, mode), magnitude = run(reference, d, in.positive(), mode);
        for (auto& [name, backend] : tested_backends()) {
          SCOPED_TRACE(fmt::format("{}, {} x {} -> {}, dropout {}, {}", name, d.rows, d.in_features, d.out_features,
                                   dropout, text(mode)));
          expect_equal(d, run(*backend, d, in, mode), expected, magnitude, 0);
        }
      }
}

TEST(Lora, In16Bits) {
  reference::ReferenceBackend reference;
  for (const DType dtype : {DType::bf16, DType::fp16})
    for (const double dropout : {0.0, kDropout})
      for (LoraDescription d : cases(dropout)) {
        Inputs in(d);
        for (auto* values : {&in.x, &in.a, &in.b, &in.y, &in.dy, &in.dx}) *values = rounded_to(dtype, *values);
        constexpr auto kMode = GradientMode::accumulate;
        const Outputs expected = run(reference, d, in, kMode), magnitude = run(reference, d, in.positive(), kMode);
        d.dtype = dtype;
        for (auto& [name, backend] : tested_backends()) {
          if (!computes_in(*backend, dtype)) continue;
          SCOPED_TRACE(fmt::format("{}, {} x {} -> {}, dropout {}, {}", name, d.rows, d.in_features, d.out_features,
                                   dropout, lockstep::name(dtype)));
          expect_equal(d, run(*backend, d, in, kMode), expected, magnitude,
                       (dtype == DType::bf16 ? kBf16Roundoff : kFp16Roundoff) / kRoundoff);
        }
      }
}

TEST(Lora, InferenceHasNoDropout) {
  for (LoraDescription d : cases(kDropout))
    for (auto& [name, backend] : tested_backends()) {
      const Inputs in(d);
      d.inference = true;
      d.dropout = kDropout;
      const Outputs dropping = run(*backend, d, in, GradientMode::skip);
      d.dropout = 0;
      EXPECT_EQ(dropping.y, run(*backend, d, in, GradientMode::skip).y) << name;
    }
}

/// What one part of a step drops is kept by another part, another epoch and another sample; and a sample has the same
/// mask wherever it is in a batch.
TEST(Lora, DropsByTheSampleAlone) {
  LoraDescription d{.rows = 6,
                    .in_features = 40,
                    .out_features = 8,
                    .rank = 40,
                    .parts = {{0, 8, 1}},
                    .dropout = 0.5,
                    .seed = 3,
                    .tokens = 3};
  Inputs in(d);
  std::ranges::fill(in.x, 1.0f);
  std::ranges::fill(in.a, 0.0f);
  for (std::size_t i = 0; i < 40; ++i) in.a[41 * i] = 1;  // h is drop(x)
  std::ranges::fill(in.y, 0.0f);
  for (auto& [name, backend] : tested_backends()) {
    const std::vector<float> both = run(*backend, d, in, GradientMode::skip).y;
    EXPECT_NE(both, run(*backend, d, in, GradientMode::skip, true, 3).y) << name << ": the epoch";
    Inputs swapped = in;
    std::swap(swapped.ids[0], swapped.ids[1]);
    const std::vector<float> other = run(*backend, d, swapped, GradientMode::skip).y;
    EXPECT_TRUE(std::equal(both.begin(), both.begin() + 24, other.begin() + 24)) << name << ": the sample";
    EXPECT_FALSE(std::equal(both.begin(), both.begin() + 24, other.begin())) << name << ": another sample";
    LoraDescription named = d;
    named.parts[0].stream = 2;
    EXPECT_NE(both, run(*backend, named, in, GradientMode::skip).y) << name << ": the part";
  }
}

/// A fraction p of all elements is zero, and the others are divided by 1 - p.
TEST(Lora, DropsTheConfiguredShare) {
  for (const double p : {0.05, 0.5, 0.9}) {
    const LoraDescription d{.rows = 1000,
                            .in_features = 80,
                            .out_features = 1,
                            .rank = 1,
                            .parts = {{0, 1, 1}},
                            .dropout = p,
                            .tokens = 1000};
    const LoraDropout dropout = LoraDropout::of(d);
    std::int64_t n_kept = 0;
    for (std::int64_t row = 0; row < d.rows; ++row)
      for (std::int64_t block = 0; block < dropout.blocks; ++block)
        n_kept += std::popcount(dropout.kept(row, block, 7, 1, 0));
    EXPECT_NEAR(static_cast<double>(n_kept) / 80000, 1 - p, 5 * std::sqrt(p * (1 - p) / 80000)) << p;
    EXPECT_NEAR(dropout.keep_scale, 1 / (1 - p), 2e-4 / (1 - p)) << p;
  }
}

TEST(Lora, RefusesImpossibleSizes) {
  const LoraDescription good{.rows = 4, .in_features = 4, .out_features = 8, .rank = 2, .parts = {{0, 8, 1}}};
  const auto with = [&](auto change) {
    LoraDescription d = good;
    change(d);
    return d;
  };
  for (auto& [name, backend] : tested_backends()) {
    EXPECT_NO_THROW((void)backend->make(good)) << name;
    EXPECT_THROW((void)backend->make(with([](auto& d) { d.rank = 0; })), Error) << name;
    EXPECT_THROW((void)backend->make(with([](auto& d) { d.parts.clear(); })), Error) << name;
    EXPECT_THROW((void)backend->make(with([](auto& d) { d.parts = {{4, 5, 1}}; })), Error) << name;
    EXPECT_THROW((void)backend->make(with([](auto& d) { d.parts = {{0, 5, 1}, {4, 2, 1}}; })), Error) << name;
    EXPECT_THROW((void)backend->make(with([](auto& d) { d.dropout = 1; })), Error) << name;
    EXPECT_THROW((void)backend->make(with([](auto& d) { d.dtype = DType::int32; })), Error) << name;
  }
}

TEST(Lora, AgreesWithFiniteDifferences) {
  for (const double dropout : {0.0, kDropout})
    for (const LoraDescription& d : cases(dropout)) {
      if (d.rows > 30) continue;
      const Inputs in(d);
      std::vector<double> x = to_double(in.x), a = to_double(in.a), b = to_double(in.b);
      const std::vector<double> dy = to_double(in.dy);
      std::vector<double> y(dy.size()), dx(x.size()), da(a.size()), db(b.size());
      const reference::LoraTensors<double> t{x.data(), a.data(), b.data(), in.ids.data(), 2};
      reference::lora_backward(d, t, dy.data(), dx.data(), da.data(), db.data(), GradientMode::overwrite);
      const auto loss = [&] {
        std::ranges::fill(y, 0.0);
        reference::lora_forward(d, t, y.data());
        return dot(dy, y);
      };
      EXPECT_TRUE(gradient_matches(x, dx, loss)) << "dx";
      EXPECT_TRUE(gradient_matches(a, da, loss)) << "dA";
      EXPECT_TRUE(gradient_matches(b, db, loss)) << "dB";
    }
}

}  // namespace
}  // namespace lockstep::test

// Rotary position embedding of the backends, compared with the reference; the reference, compared with finite
// differences.
#include "test/reference/rotary.h"

#include <gtest/gtest.h>

#include <cmath>

#include "test/reference/backend.h"
#include "test/support/compare.h"
#include "test/support/device.h"
#include "test/support/finite_difference.h"
#include "test/support/tensor.h"

namespace lockstep::test {
namespace {

constexpr auto kHalfSplit = RotaryPairs::half_split, kInterleaved = RotaryPairs::interleaved;

struct Case {
  std::int64_t rows, heads, kv_heads, head_dim;
  RotaryPairs pairs = kHalfSplit;
  bool norm = false;
  float weight_offset = 0;
};
const Case kCases[] = {{1, 1, 1, 2},
                       {1, 1, 1, 2, kInterleaved, true},
                       {5, 7, 1, 8},
                       {5, 7, 1, 8, kInterleaved},
                       {13, 3, 2, 80, kHalfSplit, true},
                       {13, 3, 2, 80, kInterleaved, true},
                       {7, 2, 1, 256, kHalfSplit, true},
                       {9, 3, 3, 64},
                       {67, 2, 1, 34, kHalfSplit, true},
                       {13, 3, 2, 80, kHalfSplit, true, 1},
                       {7, 5, 2, 64, kInterleaved, true},
                       {3, 2, 1, 250, kInterleaved, true},  // no packs, and several single pairs per thread
                       {300, 9, 3, 64}};
constexpr DType kTypes[] = {DType::fp32, DType::bf16, DType::fp16};
constexpr std::int64_t kMaxPositions = 50;

RotaryDescription describe(const Case& c, DType dtype = DType::fp32) {
  return {.rows = c.rows,
          .heads = c.heads,
          .kv_heads = c.kv_heads,
          .head_dim = c.head_dim,
          .max_positions = kMaxPositions,
          .pairs = c.pairs,
          .norm = c.norm,
          .weight_offset = c.weight_offset,
          .dtype = dtype};
}

std::vector<double> frequencies(std::int64_t head_dim) {
  std::vector<double> out;
  for (std::int64_t i = 0; i < head_dim / 2; ++i)
    out.push_back(std::pow(10000.0, -2.0 * static_cast<double>(i) / static_cast<double>(head_dim)));
  return out;
}

struct Inputs {
  Inputs(const Case& c, DType dtype)
      : table(rotary_table(frequencies(c.head_dim), 1.25, kMaxPositions)),
        q_norm(random_uniform(c.head_dim, 1, 0.5, 1.5)),
        k_norm(random_uniform(c.head_dim, 2, 0.5, 1.5)),
        dq_before(random_normal(c.head_dim, 3)),
        dk_before(random_normal(c.head_dim, 4)) {
    const std::int64_t n = c.rows * describe(c).row_size();
    x = rounded_to(dtype, random_normal(n, 5));
    dy = rounded_to(dtype, random_normal(n, 6));
    dx_before = rounded_to(dtype, random_normal(n, 7));
    for (std::int64_t row = 0; row < c.rows; ++row)  // documents of 17 tokens, and some positions outside the table
      positions.push_back(row % 23 == 22 ? -3 : row % 19 == 18 ? 1000 : static_cast<std::int32_t>(row % 17 * 3));
  }
  std::vector<float> table, q_norm, k_norm, dq_before, dk_before, x, dy, dx_before;
  std::vector<std::int32_t> positions;
};

struct Modes {
  GradientMode dx = GradientMode::overwrite, dq = GradientMode::overwrite, dk = GradientMode::overwrite;
};
struct Outputs {
  std::vector<float> y, dx, dq, dk;
};

Outputs run(Backend& backend, const RotaryDescription& d, const Inputs& in, const Modes& modes) {
  Device device(backend);
  const auto op = backend.make(d);
  const OpMemory memory = device.op_memory(op->memory_requirements());
  const auto gradient = [&](GradientMode mode, const std::vector<float>& before) {
    return mode == GradientMode::overwrite ? device.garbage<float>(before.size()) : device.upload(before);
  };
  Rotary::Forward forward;
  forward.x = device.upload_as(d.dtype, in.x);
  forward.positions = device.upload(in.positions);
  forward.table = device.upload(in.table);
  forward.q_norm = d.norm ? device.upload(in.q_norm) : nullptr;
  forward.k_norm = d.norm ? device.upload(in.k_norm) : nullptr;
  forward.y = device.garbage_as(d.dtype, in.x.size());
  op->forward(forward, memory, device.stream());
  Rotary::Backward backward;
  backward.dy = device.upload_as(d.dtype, in.dy);
  backward.x = d.norm ? forward.x : nullptr;
  backward.positions = forward.positions;
  backward.table = forward.table;
  backward.q_norm = forward.q_norm;
  backward.k_norm = forward.k_norm;
  backward.dx = modes.dx == GradientMode::overwrite ? device.garbage_as(d.dtype, in.x.size())
                                                    : device.upload_as(d.dtype, in.dx_before);
  backward.dx_mode = modes.dx;
  backward.dq_norm = d.norm ? gradient(modes.dq, in.dq_before) : nullptr;
  backward.dq_norm_mode = modes.dq;
  backward.dk_norm = d.norm ? gradient(modes.dk, in.dk_before) : nullptr;
  backward.dk_norm_mode = modes.dk;
  op->backward(backward, memory, device.stream());
  Outputs out{device.download_as(d.dtype, forward.y, in.x.size()),
              device.download_as(d.dtype, backward.dx, in.x.size()),
              {},
              {}};
  if (!d.norm) return out;
  out.dq = device.download(backward.dq_norm, in.q_norm.size());
  out.dk = device.download(backward.dk_norm, in.k_norm.size());
  return out;
}

/// |actual - expected| is at most `n_operations` roundings of numbers of size `magnitude`, and one rounding to the
/// type.
testing::AssertionResult all_near(const std::vector<float>& actual, const std::vector<float>& expected,
                                  double magnitude, double n_operations, DType dtype) {
  const double of_type = dtype == DType::bf16 ? kBf16Roundoff : dtype == DType::fp16 ? kFp16Roundoff : 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const double bound = of_type * std::abs(expected[i]) + n_operations * kRoundoff * magnitude + 0x1p-25;
    if (!(std::abs(actual[i] - expected[i]) <= bound))
      return testing::AssertionFailure() << "element " << i << " is " << actual[i] << ", expected " << expected[i]
                                         << " within " << bound;
  }
  return testing::AssertionSuccess();
}

// Normally distributed numbers are below 5.5 here, weights below 1.5 and cosines below 1.25. The inverse rms and the
// mean each contain a sum over a head of d elements, with d/2 roundings. A head of two elements can be ten times
// smaller than 1, so that its gradient is ten times larger.
TEST(Rotary, AgreesWithTheReference) {
  reference::ReferenceBackend reference;
  constexpr GradientMode kModes[] = {GradientMode::overwrite, GradientMode::accumulate, GradientMode::skip};
  for (const Case& c : kCases)
    for (const DType dtype : kTypes)
      for (int m = 0; m < 3; ++m) {
        // Many rows are slow if each is a block of fibers.
        if (c.rows > 100 && (dtype == DType::fp16 || m != 0)) continue;
        const Modes modes{kModes[m], kModes[(m + 1) % 3], kModes[(m + 2) % 3]};
        const Inputs in(c, dtype);
        const Outputs expected = run(reference, describe(c), in, modes);
        for (auto& [name, backend] : tested_backends()) {
          if (!computes_in(*backend, dtype)) continue;
          SCOPED_TRACE(fmt::format("{}, {} rows, {} and {} heads of {}, {}{}, {}, dx {}", name, c.rows, c.heads,
                                   c.kv_heads, c.head_dim, lockstep::name(c.pairs), c.norm ? ", norm" : "",
                                   lockstep::name(dtype), text(modes.dx)));
          const Outputs actual = run(*backend, describe(c, dtype), in, modes);
          const auto d = static_cast<double>(c.head_dim), rows = static_cast<double>(c.rows * c.heads);
          const double of_norm = c.norm ? d / 2 + 8 : 0;
          EXPECT_TRUE(all_near(actual.y, expected.y, 20, 3 + of_norm, dtype)) << "y";
          EXPECT_TRUE(all_near(actual.dx, expected.dx, c.norm ? 200 : 20, 4 + 3 * of_norm, dtype)) << "dx";
          EXPECT_TRUE(all_near(actual.dq, expected.dq, 20, rows + of_norm, DType::fp32)) << "dq_norm";
          EXPECT_TRUE(all_near(actual.dk, expected.dk, 20, rows + of_norm, DType::fp32)) << "dk_norm";
        }
      }
}

TEST(Rotary, SameBitsOnAnyNumberOfThreads) {
  if (!is_tested_device("cpu")) GTEST_SKIP() << "it tests the cpu backend";
  const Case c{1100, 3, 1, 64, kHalfSplit, true};
  for (const DType dtype : {DType::fp32, DType::bf16}) {
    const Inputs in(c, dtype);
    Outputs first;
    for (const int threads : {1, 2, 3}) {
      const auto backend = make_backend({.device = "cpu", .threads = threads});
      const Outputs out = run(*backend, describe(c, dtype), in, {});
      if (threads == 1) {
        first = out;
        reference::ReferenceBackend reference;
        EXPECT_TRUE(all_near(out.dq, run(reference, describe(c), in, {}).dq, 20, 3300 + 40, DType::fp32));
      }
      EXPECT_EQ(out.y, first.y) << threads;
      EXPECT_EQ(out.dx, first.dx) << threads;
      EXPECT_EQ(out.dq, first.dq) << threads;
      EXPECT_EQ(out.dk, first.dk) << threads;
    }
  }
}

/// y at the address of x, and dx at the address of dy.
TEST(Rotary, InPlace) {
  for (const Case& c : {kCases[2], kCases[3], kCases[4], kCases[5]})
    for (auto& [name, backend] : tested_backends()) {
      const Inputs in(c, DType::fp32);
      const Outputs expected = run(*backend, describe(c), in, {});
      Device device(*backend);
      const auto op = backend->make(describe(c));
      const OpMemory memory = device.op_memory(op->memory_requirements());
      const std::int32_t* const positions = device.upload(in.positions);
      const float *const table = device.upload(in.table), *const q = device.upload(in.q_norm),
                         *const k = device.upload(in.k_norm);
      float* const x = device.upload(in.x);
      float* const gradient = device.upload(in.dy);
      op->backward({.dy = gradient,
                    .x = x,
                    .positions = positions,
                    .table = table,
                    .q_norm = q,
                    .k_norm = k,
                    .dx = gradient,
                    .dq_norm = device.garbage<float>(in.q_norm.size()),
                    .dk_norm = device.garbage<float>(in.k_norm.size())},
                   memory, device.stream());
      EXPECT_EQ(device.download(gradient, in.x.size()), expected.dx) << name;
      op->forward({.x = x, .positions = positions, .table = table, .q_norm = q, .k_norm = k, .y = x}, memory,
                  device.stream());
      EXPECT_EQ(device.download(x, in.x.size()), expected.y) << name;
    }
}

/// The formulas of Hugging Face's apply_rotary_pos_emb and of llama2.c, on one head, in closed form.
TEST(Rotary, PairsAreThoseOfHuggingFaceAndLlama2c) {
  const Case c{1, 1, 1, 4};
  Inputs in(c, DType::fp32);
  in.table = rotary_table(std::vector<double>{0.5, 0.25}, 1, kMaxPositions);
  in.positions = {3};
  in.x = {1, 2, 3, 4, 0, 0, 0, 0, 5, 6, 7, 8};
  const double c0 = std::cos(1.5), s0 = std::sin(1.5), c1 = std::cos(0.75), s1 = std::sin(0.75);
  const std::vector<double> half{c0 - 3 * s0, 2 * c1 - 4 * s1, 3 * c0 + s0, 4 * c1 + 2 * s1};
  const std::vector<double> interleaved{c0 - 2 * s0, 2 * c0 + s0, 3 * c1 - 4 * s1, 4 * c1 + 3 * s1};
  for (auto& [name, backend] : tested_backends())
    for (const RotaryPairs pairs : {kHalfSplit, kInterleaved}) {
      RotaryDescription d = describe(c);
      d.pairs = pairs;
      const std::vector<float> y = run(*backend, d, in, {}).y;
      for (std::size_t i = 0; i < 4; ++i)
        EXPECT_NEAR(y[i], (pairs == kHalfSplit ? half : interleaved)[i], 1e-6) << name << ", " << i;
      EXPECT_EQ(std::vector<float>(y.begin() + 8, y.end()), (std::vector<float>{5, 6, 7, 8})) << name;
    }
}

/// Angles of many turns, for which fp32 would have errors of 1e-3.
TEST(Rotary, TheTableIsExactAtLargePositions) {
  const std::vector<float> table = rotary_table(std::vector<double>{1.0}, 2, 100'001);
  EXPECT_FLOAT_EQ(table[200'000], static_cast<float>(2 * -0.99936080743821213));  // cos(1e5)
  EXPECT_FLOAT_EQ(table[200'001], static_cast<float>(2 * 0.035748797972016507));  // sin(1e5)
}

TEST(Rotary, RejectsImpossibleDescriptions) {
  for (auto& [name, backend] : tested_backends()) {
    const RotaryDescription good = describe(kCases[2]);
    (void)backend->make(good);
    for (auto member : {&RotaryDescription::rows, &RotaryDescription::heads, &RotaryDescription::kv_heads,
                        &RotaryDescription::head_dim, &RotaryDescription::max_positions}) {
      RotaryDescription d = good;
      d.*member = 0;
      EXPECT_THROW((void)backend->make(d), Error) << name;
    }
    for (const std::int64_t head_dim : {7, 258}) {
      RotaryDescription d = good;
      d.head_dim = head_dim;
      EXPECT_THROW((void)backend->make(d), Error) << name;
    }
    RotaryDescription d = good;
    d.dtype = DType::int32;
    EXPECT_THROW((void)backend->make(d), Error) << name;
  }
}

TEST(Rotary, AgreesWithFiniteDifferences) {
  for (const Case& c : kCases) {
    if (c.rows * c.heads * c.head_dim > 5000) continue;
    SCOPED_TRACE(fmt::format("{} rows, {} heads of {}, {}", c.rows, c.heads, c.head_dim, c.norm));
    const RotaryDescription d = describe(c);
    const Inputs in(c, DType::fp32);
    std::vector<double> x = to_double(in.x), q = to_double(in.q_norm), k = to_double(in.k_norm);
    const std::vector<double> dy = to_double(in.dy);
    std::vector<double> y(x.size()), dx(x.size()), dq(q.size()), dk(k.size());
    reference::rotary_backward<double>(d, {.dy = dy.data(),
                                           .x = x.data(),
                                           .positions = in.positions.data(),
                                           .table = in.table.data(),
                                           .norms = {q.data(), k.data()},
                                           .dx = dx.data(),
                                           .dnorms = {dq.data(), dk.data()},
                                           .dnorm_modes = {GradientMode::overwrite, GradientMode::overwrite}});
    const auto loss = [&] {
      reference::rotary_forward<double>(
          d, {x.data(), in.positions.data(), in.table.data(), {q.data(), k.data()}, y.data()});
      return dot(dy, y);
    };
    EXPECT_TRUE(gradient_matches(x, dx, loss, 1e-6)) << "x";
    if (!c.norm) continue;
    EXPECT_TRUE(gradient_matches(q, dq, loss, 1e-6)) << "q_norm";
    EXPECT_TRUE(gradient_matches(k, dk, loss, 1e-6)) << "k_norm";
  }
}

}  // namespace
}  // namespace lockstep::test

// Attention of the backends, compared with the reference; the reference, compared with finite differences.
#include "test/reference/attention.h"

#include <gtest/gtest.h>

#include "kernels/cpu/base/simd.h"
#include "lockstep/algorithms.h"
#include "test/reference/backend.h"
#include "test/support/compare.h"
#include "test/support/cuda_on_host/backend.h"
#include "test/support/device.h"
#include "test/support/finite_difference.h"
#include "test/support/tensor.h"

namespace lockstep::test {
namespace {

struct Case {
  std::int64_t batch, sequence, heads, kv_heads, head_dim;
  bool documents = false;
  float scale = 0;
  std::int64_t window = 0;
};
/// On the host, documents are kept apart by a mask if the sequence is a multiple of 8. If the sums need not be
/// deterministic, they are sequences as long as a list has at most 4 documents per sample (attention_bare.h). In the
/// case of 90 tokens, the first list is short enough, and the second is not.
const Case kCases[] = {{1, 1, 1, 1, 8},
                       {2, 5, 2, 1, 1, true},
                       {2, 67, 7, 1, 64, true},
                       {1, 130, 3, 3, 8, true},
                       {2, 33, 9, 3, 64, false},
                       {1, 70, 4, 2, 80, true},
                       {3, 17, 6, 2, 37, true},
                       {1, 64, 2, 2, 16, false},
                       {1, 40, 2, 1, 256, true},
                       {1, 66, 5, 1, 129, false, 0.02f},
                       {2, 40, 6, 2, 16, true},
                       {1, 40, 6, 3, 16, true},
                       {2, 90, 6, 2, 8, true},
                       {2, 150, 4, 2, 16, false, 0, 1},
                       {1, 150, 3, 1, 64, false, 0, 70},
                       {2, 140, 6, 2, 24, true, 0, 9},
                       {3, 136, 6, 2, 24, true, 0, 9}};

AttentionDescription describe(const Case& c, DType dtype = DType::fp32) {
  return {.batch = c.batch,
          .sequence = c.sequence,
          .heads = c.heads,
          .kv_heads = c.kv_heads,
          .head_dim = c.head_dim,
          .dtype = dtype,
          .scale = c.scale,
          .window = c.window,
          .documents = c.documents};
}

/// Documents of 1 to 40 tokens; each sample begins with different lengths.
std::vector<std::int32_t> documents_of(const Case& c) {
  std::vector<std::int32_t> starts;
  for (std::int64_t b = 0; b < c.batch; ++b) {
    std::int32_t start = 0, length = static_cast<std::int32_t>(1 + 7 * b);
    for (std::int32_t t = 0; t < c.sequence; ++t) {
      if (t == start + length) {
        start = t;
        length = 1 + (length * 17 + 5) % 40;
      }
      starts.push_back(start);
    }
  }
  return starts;
}

struct Inputs {
  Inputs(const Case& c, DType dtype)
      : qkv(rounded_to(dtype, random_normal(c.batch * c.sequence * describe(c).packed_width(), 1))),
        dy(rounded_to(dtype, random_normal(c.batch * c.sequence * c.heads * c.head_dim, 2))),
        document_start(documents_of(c)) {}
  const std::int32_t* starts(const Case& c) const { return c.documents ? document_start.data() : nullptr; }
  std::vector<float> qkv, dy;
  std::vector<std::int32_t> document_start;
};

struct Outputs {
  std::vector<float> y, dqkv;
  bool operator==(const Outputs&) const = default;
};

Outputs run(Backend& backend, const AttentionDescription& d, const Inputs& in) {
  Device device(backend);
  const auto op = backend.make(d);
  const OpMemory memory = device.op_memory(op->memory_requirements());
  Attention::Forward forward;
  forward.qkv = device.upload_as(d.dtype, in.qkv);
  if (d.documents) forward.document_start = device.upload(in.document_start);
  forward.y = device.garbage_as(d.dtype, in.dy.size());
  op->forward(forward, memory, device.stream());
  Outputs out{.y = device.download_as(d.dtype, forward.y, in.dy.size()), .dqkv = {}};
  if (d.inference) return out;
  Attention::Backward backward;
  backward.qkv = forward.qkv;
  backward.document_start = forward.document_start;
  backward.y = forward.y;
  backward.dy = device.upload_as(d.dtype, in.dy);
  backward.dqkv = device.garbage_as(d.dtype, in.qkv.size());
  op->backward(backward, memory, device.stream());
  out.dqkv = device.download_as(d.dtype, backward.dqkv, in.qkv.size());
  return out;
}

/// The sums of absolute values that make up each result, and the largest such sum for a score, on which p depends.
struct Magnitudes {
  Outputs sums;
  double score = 0;
};
Magnitudes magnitudes(const AttentionDescription& d, const Inputs& in, const std::int32_t* starts) {
  Magnitudes out{{in.dy, in.qkv}};
  std::vector<float> absolute_v = in.qkv;
  const auto width = static_cast<std::size_t>(d.packed_width());
  const auto values = static_cast<std::size_t>((d.heads + d.kv_heads) * d.head_dim);
  for (std::size_t i = 0; i < absolute_v.size(); ++i)
    if (i % width >= values) absolute_v[i] = std::abs(absolute_v[i]);
  reference::attention_forward(d, absolute_v.data(), starts, out.sums.y.data());
  reference::attention_backward<float>(d, {in.qkv.data(), starts, in.dy.data(), out.sums.dqkv.data()}, true);
  reference::for_each_query(
      d, in.qkv.data(), starts,
      [&](auto, const auto& x, std::int64_t t, std::int64_t h, std::int64_t first, const auto&) {
        for (std::int64_t s = first; s <= t; ++s)
          out.score = std::max(out.score,
                               d.score_scale() * reference::dot(x.q(t, h), x.k(s, h), d.head_dim, /*absolute=*/true));
      });
  return out;
}

testing::AssertionResult all_near(const std::vector<float>& actual, const std::vector<float>& expected,
                                  const std::vector<float>& magnitude, double relative) {
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const double bound = relative * magnitude[i] + 0x1p-24;  // the last term is for denormal fp16 numbers
    if (!(std::abs(actual[i] - expected[i]) <= bound))
      return testing::AssertionFailure() << "element " << i << " is " << actual[i] << ", expected " << expected[i]
                                         << " within " << bound;
  }
  return testing::AssertionSuccess();
}

/// Errors relative to the sums of absolute values. A score is a sum of head_dim products, and its absolute error is the
/// relative error of its exponential, which is then divided by a sum over the row. log_sum_exp has one more rounding,
/// about that of a score. An element of y, of dq or of a score's gradient is again a sum weighted with such
/// probabilities; dk and dv are sums over the rows of all heads. With 16 bits, y, p, the gradient of a score and the
/// result are rounded as well: 4 roundings.
double tolerance(const AttentionDescription& d, const Magnitudes& magnitude, bool is_gradient) {
  const auto tokens = static_cast<double>(d.sequence), dim = static_cast<double>(d.head_dim);
  const double p = magnitude.score * (dim + 4) + tokens + 16;
  const double n_fp32 = is_gradient ? 2 * p + 2 * dim + tokens * static_cast<double>(d.group()) + 16 : p + tokens + 8;
  const double of_type = d.dtype == DType::bf16 ? kBf16Roundoff : d.dtype == DType::fp16 ? kFp16Roundoff : 0;
  return n_fp32 * kRoundoff + (is_gradient ? 4 : 2) * of_type;
}

TEST(Attention, AgreesWithTheReference) {
  reference::ReferenceBackend reference;
  for (const Case& c : kCases)
    for (const DType dtype : {DType::fp32, DType::bf16, DType::fp16}) {
      const AttentionDescription d = describe(c, dtype);
      const Inputs in(c, dtype);
      const Outputs expected = run(reference, describe(c), in);
      const Magnitudes magnitude = magnitudes(d, in, in.starts(c));
      const auto check = [&](const std::string& name, Backend& backend) {
        if (!computes_in(backend, dtype)) return;
        SCOPED_TRACE(fmt::format("{}, {}, documents {}", name, text(d), c.documents));
        const Outputs actual = run(backend, d, in);
        EXPECT_TRUE(all_near(actual.y, expected.y, magnitude.sums.y, tolerance(d, magnitude, false))) << "y";
        EXPECT_TRUE(all_near(actual.dqkv, expected.dqkv, magnitude.sums.dqkv, tolerance(d, magnitude, true))) << "dqkv";
      };
      for (auto& [name, backend] : tested_backends()) check(name, *backend);
#ifdef LOCKSTEP_CUDA
      if (is_tested_device("host"))
        check("host, any order of sums", *make_cuda_on_host_backend("", std::make_shared<Algorithms>()));
#endif
    }
}

/// All units add to the same keys, and there are more threads than cores.
TEST(Attention, SameBitsOnAnyNumberOfThreads) {
  if (!is_tested_device("cpu")) GTEST_SKIP() << "it tests the cpu backend";
  const Case c{1, 700, 8, 1, 8, false};
  for (const DType dtype : {DType::fp32, DType::bf16}) {
    const Inputs in(c, dtype);
    Outputs first;
    for (const int threads : {1, 2, 3, 7, 7, 7}) {
      const auto backend = make_backend({.device = "cpu", .threads = threads});
      const Outputs out = run(*backend, describe(c, dtype), in);
      if (threads == 1) first = out;
      EXPECT_EQ(out, first) << threads << " threads";
    }
  }
}

TEST(Attention, EveryInstructionSetAgreesWithTheReference) {
  if (!is_tested_device("cpu")) GTEST_SKIP() << "it tests the cpu backend";
  reference::ReferenceBackend reference;
  const auto backend = make_backend({.device = "cpu", .threads = 1});
  for (const Case& c :
       {Case{1, 140, 6, 2, 64, true}, Case{2, 70, 3, 1, 37, false}, Case{1, 140, 6, 2, 64, true, 0, 20}})
    for (const DType dtype : {DType::fp32, DType::bf16})
      for (const cpu::Isa isa : {cpu::Isa::baseline, cpu::Isa::avx2, cpu::Isa::avx512}) {
        cpu::limit_isa(isa);
        const AttentionDescription d = describe(c, dtype);
        const Inputs in(c, dtype);
        const Outputs expected = run(reference, describe(c), in), actual = run(*backend, d, in);
        cpu::limit_isa(cpu::Isa::avx512);
        const Magnitudes magnitude = magnitudes(d, in, in.starts(c));
        EXPECT_TRUE(all_near(actual.y, expected.y, magnitude.sums.y, tolerance(d, magnitude, false)))
            << text(d) << ", instruction set " << static_cast<int>(isa);
        EXPECT_TRUE(all_near(actual.dqkv, expected.dqkv, magnitude.sums.dqkv, tolerance(d, magnitude, true)))
            << text(d) << ", instruction set " << static_cast<int>(isa);
      }
}

/// Tokens of other documents, and later tokens, have no influence at all: each document alone gives the same results.
TEST(Attention, DocumentsArePackedWithoutInfluence) {
  const Case packed{1, 90, 4, 2, 16, true}, alone{1, 45, 4, 2, 16, false};
  Inputs in(packed, DType::fp32);
  for (std::size_t t = 0; t < 90; ++t) in.document_start[t] = t < 45 ? 0 : 45;
  for (auto& [name, backend] : tested_backends()) {
    const Outputs together = run(*backend, describe(packed), in);
    for (int document = 0; document < 2; ++document) {
      Inputs part(alone, DType::fp32);
      const auto half_of = [&](const std::vector<float>& all) {
        const auto half = static_cast<std::ptrdiff_t>(all.size() / 2);
        return std::vector<float>(all.begin() + document * half, all.begin() + (document + 1) * half);
      };
      part.qkv = half_of(in.qkv);
      part.dy = half_of(in.dy);
      const Outputs expected = run(*backend, describe(alone), part);
      EXPECT_TRUE(near(half_of(together.y), expected.y, 2e-6)) << name;
      EXPECT_TRUE(near(half_of(together.dqkv), expected.dqkv, 2e-6)) << name;
    }
  }
}

/// Scores of several hundred, whose exponentials overflow unless the maximum is subtracted.
TEST(Attention, GreatScores) {
  const Case c{1, 70, 2, 1, 64, false, 5.0f};
  reference::ReferenceBackend reference;
  const Inputs in(c, DType::fp32);
  const AttentionDescription d = describe(c);
  const Outputs expected = run(reference, d, in);
  const Magnitudes magnitude = magnitudes(d, in, nullptr);
  EXPECT_GT(magnitude.score, 100);
  for (auto& [name, backend] : tested_backends()) {
    const Outputs actual = run(*backend, d, in);
    EXPECT_TRUE(all_near(actual.y, expected.y, magnitude.sums.y, tolerance(d, magnitude, false))) << name;
    EXPECT_TRUE(all_near(actual.dqkv, expected.dqkv, magnitude.sums.dqkv, tolerance(d, magnitude, true))) << name;
  }
}

/// Invalid values of document_start select other keys of the sample, but nothing outside it.
TEST(Attention, StaysWithinTheSample) {
  const Case c{2, 70, 2, 1, 16, true};
  Inputs in(c, DType::fp32);
  for (std::size_t i = 0; i < in.document_start.size(); ++i)
    in.document_start[i] = static_cast<std::int32_t>(i % 3 == 0 ? -1000000 : i % 3 == 1 ? 1000000 : 60);
  for (auto& [name, backend] : tested_backends()) {
    const Outputs out = run(*backend, describe(c), in);
    for (const float value : out.y) ASSERT_TRUE(std::isfinite(value)) << name;
  }
}

TEST(Attention, Inference) {
  const Case c{2, 67, 4, 2, 24, true};
  const Inputs in(c, DType::fp32);
  for (auto& [name, backend] : tested_backends()) {
    AttentionDescription d = describe(c);
    const Outputs expected = run(*backend, d, in);
    d.inference = true;
    EXPECT_EQ(backend->make(d)->memory_requirements().saved_bytes, 0u) << name;
    EXPECT_EQ(run(*backend, d, in).y, expected.y) << name;
  }
}

TEST(Attention, RejectsImpossibleDescriptions) {
  const AttentionDescription good = describe({2, 8, 4, 2, 16});
  for (auto& [name, backend] : tested_backends()) {
    EXPECT_NO_THROW((void)backend->make(good)) << name;
    for (auto size : {&AttentionDescription::batch, &AttentionDescription::sequence, &AttentionDescription::heads,
                      &AttentionDescription::kv_heads, &AttentionDescription::head_dim}) {
      AttentionDescription d = good;
      d.*size = 0;
      EXPECT_THROW((void)backend->make(d), Error) << name;
    }
    AttentionDescription d = good;
    d.kv_heads = 3;
    EXPECT_THROW((void)backend->make(d), Error) << name;
    d = good;
    d.head_dim = 257;
    EXPECT_THROW((void)backend->make(d), Error) << name;
    d = good;
    d.dtype = DType::int32;
    EXPECT_THROW((void)backend->make(d), Error) << name;
  }
}

TEST(Attention, AgreesWithFiniteDifferences) {
  for (const Case& c : {Case{2, 6, 4, 2, 3, true}, Case{1, 9, 3, 1, 5, false}, Case{1, 7, 2, 2, 4, true, 0.7f}}) {
    const Inputs in(c, DType::fp32);
    const AttentionDescription d = describe(c);
    std::vector<double> qkv = to_double(in.qkv), y(in.dy.size()), dqkv(qkv.size());
    const std::vector<double> dy = to_double(in.dy);
    reference::attention_backward<double>(d, {qkv.data(), in.starts(c), dy.data(), dqkv.data()});
    const auto loss = [&] {
      reference::attention_forward(d, qkv.data(), in.starts(c), y.data());
      return dot(dy, y);
    };
    EXPECT_TRUE(gradient_matches(qkv, dqkv, loss)) << text(d);
  }
}

}  // namespace
}  // namespace lockstep::test

// sanitizers: -CachedAttention.SameBits*
// Attention over a cache: the backends, compared with the reference and with the op `attention`.
#include "test/reference/cached_attention.h"

#include <gtest/gtest.h>

#include "kernels/cpu/base/simd.h"
#include "test/reference/backend.h"
#include "test/support/compare.h"
#include "test/support/device.h"
#include "test/support/tensor.h"

namespace lockstep::test {
namespace {

struct Case {
  std::int64_t rows, slots, capacity, heads, kv_heads, head_dim;
  float scale = 0;
  std::int64_t window = 0;
};
const Case kCases[] = {{1, 1, 1, 1, 1, 8},
                       {1, 1, 70, 9, 3, 64},
                       {5, 3, 9, 2, 1, 1},
                       {7, 2, 130, 7, 1, 64},
                       {20, 4, 67, 6, 2, 37},
                       {3, 5, 200, 4, 4, 80},
                       {64, 1, 64, 3, 1, 16},
                       {9, 3, 129, 5, 5, 129, 0.02f},
                       {4, 2, 65, 2, 1, 256},
                       {3, 1, 140, 20, 1, 48},
                       {280, 2, 150, 4, 2, 16},
                       {9, 2, 150, 4, 2, 16, 0, 70},
                       {280, 2, 150, 6, 2, 24, 0, 9},
                       {4, 3, 70, 3, 1, 8, 0, 1}};

CachedAttentionDescription describe(const Case& c, DType dtype = DType::fp32) {
  return {.rows = c.rows,
          .slots = c.slots,
          .capacity = c.capacity,
          .heads = c.heads,
          .kv_heads = c.kv_heads,
          .head_dim = c.head_dim,
          .dtype = dtype,
          .scale = c.scale,
          .window = c.window};
}

/// Rows of several sequences in turn, of which some are consecutive rows of one sequence; padding; keys and values in
/// other slots.
struct Inputs {
  Inputs(const Case& c, DType dtype)
      : qkv(rounded_to(dtype, random_normal(c.rows * describe(c).packed_width(), 1))),
        cache(rounded_to(dtype, random_normal(2 * describe(c).cached_elements(), 2))) {
    std::vector<std::int32_t> next(static_cast<std::size_t>(c.slots));
    for (std::size_t s = 0; s < next.size(); ++s)  // as many as fit before the end
      next[s] =
          static_cast<std::int32_t>(std::max<std::int64_t>(0, c.capacity - c.rows - static_cast<std::int64_t>(7 * s)));
    for (std::int32_t r = 0; r < c.rows; ++r) {
      const auto s = static_cast<std::size_t>(r / 2 % c.slots);
      const bool is_padding = r % 5 == 4 || next[s] >= c.capacity;
      slot.push_back(is_padding && r % 2 == 0 ? static_cast<std::int32_t>(c.slots) : static_cast<std::int32_t>(s));
      position.push_back(is_padding && r % 2 != 0 ? -1 : is_padding ? 0 : next[s]++);
    }
    for (std::int64_t i = 0; i < c.slots * c.capacity; ++i) {
      const std::int64_t own = i / c.capacity, p = i % c.capacity;
      cache_indirection.push_back(static_cast<std::int32_t>(p % 3 == 0     ? own
                                                            : p % 17 == 16 ? c.slots + p
                                                                           : (own + p) % c.slots));
    }
  }
  std::vector<float> qkv, cache;
  std::vector<std::int32_t> slot, position, cache_indirection;
};

struct Outputs {
  std::vector<float> y, cache;
  bool operator==(const Outputs&) const = default;
};

Outputs run(Backend& backend, const CachedAttentionDescription& d, const Inputs& in) {
  Device device(backend);
  const auto op = backend.make(d);
  const OpMemory memory = device.op_memory(op->memory_requirements());
  const auto n = static_cast<std::size_t>(d.rows * d.heads * d.head_dim);
  CachedAttention::Forward args;
  args.qkv = device.upload_as(d.dtype, in.qkv);
  args.slot = device.upload(in.slot);
  args.position = device.upload(in.position);
  args.cache_indirection = device.upload(in.cache_indirection);
  args.cache = device.upload_as(d.dtype, in.cache);
  args.y = device.garbage_as(d.dtype, n);
  op->forward(args, memory, device.stream());
  return {device.download_as(d.dtype, args.y, n), device.download_as(d.dtype, args.cache, in.cache.size())};
}

/// Errors relative to the sum of absolute values: the error of a score is that of a sum of head_dim products, and is
/// the relative error of its exponential; then a sum over the keys is divided by another sum.
testing::AssertionResult all_near(const CachedAttentionDescription& d, const Inputs& in, const Outputs& actual,
                                  const Outputs& expected) {
  if (actual.cache != expected.cache) return testing::AssertionFailure() << "the caches differ";
  std::vector<float> cache = in.cache, magnitude(expected.y.size());
  reference::cached_attention_forward<float>(
      d,
      {in.qkv.data(), in.slot.data(), in.position.data(), in.cache_indirection.data(), cache.data(), magnitude.data()},
      true);
  double q = 0, k = 0;
  for (const float v : in.qkv) q = std::max(q, std::abs(double{v}));
  for (const float v : cache) k = std::max(k, std::abs(double{v}));
  const auto dim = static_cast<double>(d.head_dim);
  const double score = d.score_scale() * q * k * dim;
  const double n = score * (dim + 4) + 2 * static_cast<double>(d.capacity) + 24;
  const double of_type = d.dtype == DType::bf16 ? kBf16Roundoff : d.dtype == DType::fp16 ? kFp16Roundoff : 0;
  for (std::size_t i = 0; i < expected.y.size(); ++i) {
    const double bound = (n * kRoundoff + 2 * of_type) * magnitude[i] + 0x1p-24;
    if (!(std::abs(actual.y[i] - expected.y[i]) <= bound))
      return testing::AssertionFailure() << "element " << i << " is " << actual.y[i] << ", expected " << expected.y[i]
                                         << " within " << bound;
  }
  return testing::AssertionSuccess();
}

TEST(CachedAttention, AgreesWithTheReference) {
  reference::ReferenceBackend reference;
  for (const Case& c : kCases)
    for (const DType dtype : {DType::fp32, DType::bf16, DType::fp16}) {
      const Inputs in(c, dtype);
      const Outputs expected = run(reference, describe(c), in);
      for (auto& [name, backend] : tested_backends()) {
        if (!computes_in(*backend, dtype)) continue;
        const CachedAttentionDescription d = describe(c, dtype);
        EXPECT_TRUE(all_near(d, in, run(*backend, d, in), expected)) << name << ", " << text(d);
      }
    }
}

TEST(CachedAttention, EveryInstructionSetAgreesWithTheReference) {
  if (!is_tested_device("cpu")) GTEST_SKIP() << "it tests the cpu backend";
  reference::ReferenceBackend reference;
  const auto backend = make_backend({.device = "cpu", .threads = 1});
  for (const Case& c : {Case{7, 2, 130, 9, 3, 64}, Case{9, 2, 67, 7, 1, 37}})
    for (const DType dtype : {DType::fp32, DType::bf16})
      for (const cpu::Isa isa : {cpu::Isa::baseline, cpu::Isa::avx2, cpu::Isa::avx512}) {
        cpu::limit_isa(isa);
        const Inputs in(c, dtype);
        const Outputs actual = run(*backend, describe(c, dtype), in);
        cpu::limit_isa(cpu::Isa::avx512);
        EXPECT_TRUE(all_near(describe(c, dtype), in, actual, run(reference, describe(c), in)))
            << text(describe(c, dtype)) << ", instruction set " << static_cast<int>(isa);
      }
}

TEST(CachedAttention, SameBitsOnAnyNumberOfThreads) {
  if (!is_tested_device("cpu")) GTEST_SKIP() << "it tests the cpu backend";
  const Case c{20, 4, 150, 6, 2, 40};
  for (const DType dtype : {DType::fp32, DType::bf16}) {
    const Inputs in(c, dtype);
    Outputs first;
    for (const int threads : {1, 2, 3, 7}) {
      const auto backend = make_backend({.device = "cpu", .threads = threads});
      const Outputs out = run(*backend, describe(c, dtype), in);
      if (threads == 1) first = out;
      EXPECT_EQ(out, first) << threads << " threads";
    }
  }
}

/// A sequence in one call, in calls of other sizes, and together with other sequences: the same bits.
TEST(CachedAttention, SameBitsInAnyChunksAndCompany) {
  constexpr std::int32_t kLength = 140;  // enough tokens that a GPU does not divide their keys among blocks
  const Case whole{kLength, 1, kLength, 4, 2, 24};
  const CachedAttentionDescription all = describe(whole);
  const std::vector<float> qkv = random_normal(kLength * all.packed_width(), 1);
  const auto n_y = static_cast<std::size_t>(all.heads * all.head_dim),
             n_x = static_cast<std::size_t>(all.packed_width());
  for (auto& [name, backend] : tested_backends()) {
    std::vector<float> first;
    for (const std::int32_t chunk : {kLength, 3, 50}) {
      CachedAttentionDescription d = all;
      d.slots = 2;  // this sequence is in the second, and another one in the first
      d.rows = 2 * chunk;
      Device device(*backend);
      const auto op = backend->make(d);
      const OpMemory memory = device.op_memory(op->memory_requirements());
      std::vector<std::int32_t> cache_indirection;
      for (std::int32_t i = 0; i < 2 * kLength; ++i) cache_indirection.push_back(i / kLength);
      void* const cache = device.garbage_as(DType::fp32, static_cast<std::size_t>(2 * d.cached_elements()));
      std::vector<float> y;
      for (std::int32_t begin = 0; begin < kLength; begin += chunk) {
        std::vector<float> x;
        std::vector<std::int32_t> slot, position;
        for (std::int32_t i = 0; i < 2 * chunk; ++i) {
          const std::int32_t p = begin + i / 2, from = std::min(p, kLength - 1);
          const auto row = qkv.begin() + static_cast<std::ptrdiff_t>(n_x) * from;
          x.insert(x.end(), row, row + static_cast<std::ptrdiff_t>(n_x));
          if (i % 2 == 0)
            for (std::size_t j = 0; j < n_x; ++j) x[x.size() - 1 - j] *= -0.5f;
          slot.push_back(i % 2);
          position.push_back(p < kLength ? p : -1);
        }
        void* const out = device.garbage_as(DType::fp32, static_cast<std::size_t>(d.rows) * n_y);
        op->forward({.qkv = device.upload(x),
                     .slot = device.upload(slot),
                     .position = device.upload(position),
                     .cache_indirection = device.upload(cache_indirection),
                     .cache = cache,
                     .y = out},
                    memory, device.stream());
        const auto rows = device.download_as(DType::fp32, out, static_cast<std::size_t>(d.rows) * n_y);
        for (std::int32_t i = 0; i < chunk && begin + i < kLength; ++i) {
          const auto row = rows.begin() + static_cast<std::ptrdiff_t>(n_y) * (2 * i + 1);
          y.insert(y.end(), row, row + static_cast<std::ptrdiff_t>(n_y));
        }
      }
      if (first.empty()) first = y;
      EXPECT_EQ(y, first) << name << ", chunks of " << chunk;
    }
    // Without a cache.
    Device device(*backend);
    const auto attention = backend->make(AttentionDescription{.batch = 1,
                                                              .sequence = kLength,
                                                              .heads = all.heads,
                                                              .kv_heads = all.kv_heads,
                                                              .head_dim = all.head_dim,
                                                              .inference = true});
    void* const y = device.garbage_as(DType::fp32, first.size());
    attention->forward({.qkv = device.upload(qkv), .y = y}, device.op_memory(attention->memory_requirements()),
                       device.stream());
    EXPECT_TRUE(near(device.download_as(DType::fp32, y, first.size()), first, 4e-6)) << name;
  }
}

/// Scores of several hundred, whose exponentials overflow unless the maximum is subtracted.
TEST(CachedAttention, GreatScores) {
  const Case c{4, 2, 100, 2, 1, 64, 5.0f};
  reference::ReferenceBackend reference;
  const Inputs in(c, DType::fp32);
  const Outputs expected = run(reference, describe(c), in);
  for (auto& [name, backend] : tested_backends())
    EXPECT_TRUE(all_near(describe(c), in, run(*backend, describe(c), in), expected)) << name;
}

TEST(CachedAttention, RejectsImpossibleDescriptions) {
  const CachedAttentionDescription good = describe({2, 2, 8, 4, 2, 16});
  for (auto& [name, backend] : tested_backends()) {
    EXPECT_NO_THROW((void)backend->make(good)) << name;
    for (auto size : {&CachedAttentionDescription::rows, &CachedAttentionDescription::slots,
                      &CachedAttentionDescription::capacity, &CachedAttentionDescription::heads,
                      &CachedAttentionDescription::kv_heads, &CachedAttentionDescription::head_dim}) {
      CachedAttentionDescription bad = good;
      bad.*size = 0;
      EXPECT_THROW((void)backend->make(bad), Error) << name;
    }
    CachedAttentionDescription bad = good;
    bad.kv_heads = 3;
    EXPECT_THROW((void)backend->make(bad), Error) << name;
    bad = good;
    bad.head_dim = 257;
    EXPECT_THROW((void)backend->make(bad), Error) << name;
    bad = good;
    bad.dtype = DType::int32;
    EXPECT_THROW((void)backend->make(bad), Error) << name;
  }
}

}  // namespace
}  // namespace lockstep::test

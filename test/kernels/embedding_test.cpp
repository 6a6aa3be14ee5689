// Embedding of the backends, compared with the reference; the reference, compared with finite differences.
#include "test/reference/embedding.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "lockstep/ops/matmul.h"
#include "lockstep/philox.h"
#include "test/reference/backend.h"
#include "test/support/compare.h"
#include "test/support/device.h"
#include "test/support/finite_difference.h"
#include "test/support/tensor.h"

namespace lockstep::test {
namespace {

enum class Ids { uniform, skewed, equal, none };

struct Case {
  std::int64_t rows, vocabulary, width;
  Ids ids = Ids::uniform;
  float scale = 1;
};
/// One row; ids that occur once, often, and never; runs of one id that span many tiles of a GPU's sums; so many ids
/// that a GPU sorts them in one pass, two passes and three passes; and enough for two threads.
const Case kCases[] = {{1, 1, 1},
                       {7, 5, 16},
                       {300, 7, 37},
                       {100, 300, 20, Ids::skewed},
                       {300, 70'000, 2},
                       {2100, 400, 3, Ids::skewed},
                       {4500, 16, 8, Ids::skewed},
                       {257, 9, 64, Ids::equal},
                       {40, 33, 24, Ids::none},
                       {70, 7, 37, Ids::skewed, 25.298f},
                       {600, 300, 576, Ids::skewed},
                       {16'385, 200, 2, Ids::skewed},
                       {16'500, 400, 1},
                       {16'500, 70'000, 1, Ids::skewed}};
constexpr DType kTypes[] = {DType::fp32, DType::bf16, DType::fp16};

/// The ids include some that do not exist.
std::vector<std::int32_t> ids_of(const Case& c) {
  const Philox random(5, RandomPurpose::synthetic, 1, 0);
  std::vector<std::int32_t> ids;
  for (std::int64_t i = 0; i < c.rows; ++i) {
    const double u = random.uniform(static_cast<std::uint64_t>(i));
    const auto any = static_cast<std::int32_t>(u * static_cast<double>(c.vocabulary));
    const auto last = static_cast<std::int32_t>(c.vocabulary) - 1;
    if (c.ids == Ids::none)
      ids.push_back(i % 2 == 0 ? -1 : last + 1);
    else if (c.ids == Ids::equal)
      ids.push_back(last);
    else if (i % 11 == 5)
      ids.push_back(i % 2 == 0 ? -100 : last + 1 + static_cast<std::int32_t>(i));
    else
      ids.push_back(c.ids == Ids::skewed && i % 3 != 0 ? last / 2 : any);
  }
  return ids;
}

struct Inputs {
  Inputs(const Case& c, DType dtype)
      : ids(ids_of(c)),
        weight(rounded_to(dtype, random_normal(c.vocabulary * c.width, 1))),
        dy(rounded_to(dtype, random_normal(c.rows * c.width, 2))),
        dweight_before(random_normal(c.vocabulary * c.width, 3)) {}
  std::vector<std::int32_t> ids;
  std::vector<float> weight, dy, dweight_before;
};

EmbeddingDescription describe(const Case& c, DType dtype = DType::fp32) {
  return {.rows = c.rows, .vocabulary = c.vocabulary, .width = c.width, .dtype = dtype, .scale = c.scale};
}

std::vector<float> run_forward(Backend& backend, const EmbeddingDescription& d, const Inputs& in) {
  Device device(backend);
  const auto op = backend.make(d);
  void* const y = device.garbage_as(d.dtype, in.dy.size());
  op->forward({.ids = device.upload(in.ids), .weight = device.upload_as(d.dtype, in.weight), .y = y},
              device.op_memory(op->memory_requirements()), device.stream());
  return device.download_as(d.dtype, y, in.dy.size());
}

/// The gradient of the weight.
std::vector<float> run_backward(Backend& backend, const EmbeddingDescription& d, const Inputs& in, GradientMode mode) {
  Device device(backend);
  const auto op = backend.make(d);
  const OpMemory memory = device.op_memory(op->memory_requirements());
  void* const dweight = mode == GradientMode::overwrite ? device.garbage_as(d.gradient_dtype, in.weight.size())
                                                        : device.upload_as(d.gradient_dtype, in.dweight_before);
  op->backward(
      {.ids = device.upload(in.ids), .dy = device.upload_as(d.dtype, in.dy), .dweight = dweight, .dweight_mode = mode},
      memory, device.stream());
  return device.download_as(d.gradient_dtype, dweight, in.weight.size());
}

std::string text_of(const std::string& backend, const Case& c, DType dtype) {
  return fmt::format("{}, {} of {} x {}, {}", backend, c.rows, c.vocabulary, c.width, name(dtype));
}

/// Copies rows, times the scale. On the host, each row is a block of 256 fibers of a GPU's kernel, which is slow under
/// the sanitizers.
TEST(Embedding, ForwardAgreesWithTheReference) {
  reference::ReferenceBackend reference;
  for (const Case& c : kCases) {
    if (c.rows > 100) continue;
    for (const DType dtype : kTypes) {
      const Inputs in(c, dtype);
      const std::vector<float> expected = rounded_to(dtype, run_forward(reference, describe(c), in));
      for (auto& [name, backend] : tested_backends()) {
        if (!computes_in(*backend, dtype)) continue;
        EXPECT_EQ(run_forward(*backend, describe(c, dtype), in), expected) << text_of(name, c, dtype);
      }
    }
  }
}

TEST(Embedding, BackwardAgreesWithTheReference) {
  reference::ReferenceBackend reference;
  for (const Case& c : kCases)
    for (const DType dtype : kTypes)
      for (const GradientMode mode : {GradientMode::overwrite, GradientMode::accumulate, GradientMode::skip}) {
        if (c.rows > 500 && (dtype != DType::fp32 || mode == GradientMode::skip)) continue;
        const Inputs in(c, dtype);
        Inputs positive = in;
        positive.dy = absolute(in.dy);
        positive.dweight_before = absolute(in.dweight_before);
        const std::vector<float> expected = run_backward(reference, describe(c), in, mode);
        const std::vector<float> magnitude = run_backward(reference, describe(c), positive, mode);
        for (auto& [name, backend] : tested_backends()) {
          if (!computes_in(*backend, dtype)) continue;
          SCOPED_TRACE(text_of(name, c, dtype) + ", " + text(mode));
          const std::vector<float> actual = run_backward(*backend, describe(c, dtype), in, mode);
          EXPECT_TRUE(within_rounding(actual, expected, magnitude, static_cast<double>(c.rows) + 1));
        }
      }
}

/// A gradient in bf16 is the one in fp32, or that one and what was there before, rounded once.
TEST(Embedding, AGradientInBf16IsRoundedOnce) {
  for (const Case& c : kCases)
    for (const GradientMode mode : {GradientMode::overwrite, GradientMode::accumulate})
      for (auto& [name, backend] : tested_backends()) {
        if (c.rows > 500 || !computes_in(*backend, DType::bf16)) continue;
        Inputs in(c, DType::bf16);
        in.dweight_before = rounded_to(DType::bf16, in.dweight_before);
        EmbeddingDescription d = describe(c, DType::bf16);
        const std::vector<float> wide = run_backward(*backend, d, in, mode);
        d.gradient_dtype = DType::bf16;
        EXPECT_EQ(run_backward(*backend, d, in, mode), rounded_to(DType::bf16, wide))
            << text_of(name, c, DType::bf16) << ", " << text(mode);
      }
}

/// A row of the gradient is the sum over the positions of its id, in order, so that it has the same bits on any number
/// of threads.
TEST(Embedding, SameBitsOnAnyNumberOfThreads) {
  if (!is_tested_device("cpu")) GTEST_SKIP() << "it tests the cpu backend";
  const Case c{3000, 50, 64, Ids::skewed};
  for (const DType dtype : {DType::fp32, DType::bf16}) {
    const Inputs in(c, dtype);
    std::vector<float> in_order(in.weight.size());
    for (std::size_t row = 0; row < in.ids.size(); ++row) {
      if (in.ids[row] < 0 || in.ids[row] >= c.vocabulary) continue;
      for (std::size_t k = 0; k < 64; ++k)
        in_order[static_cast<std::size_t>(in.ids[row]) * 64 + k] += in.dy[row * 64 + k];
    }
    for (const int threads : {1, 2, 3, 7}) {
      const auto backend = make_backend({.device = "cpu", .threads = threads});
      EXPECT_EQ(run_backward(*backend, describe(c, dtype), in, GradientMode::overwrite), in_order) << threads;
    }
  }
}

TEST(Embedding, SharesTheWeightOfAMatmul) {
  for (auto& [name, backend] : tested_backends())
    for (const DType dtype : {DType::fp32, DType::bf16}) {
      const auto embedding =
          backend->make(EmbeddingDescription{.rows = 6, .vocabulary = 48, .width = 32, .dtype = dtype});
      const auto matmul = backend->make(MatmulDescription{.rows = 6,
                                                          .in_features = 32,
                                                          .out_features = 48,
                                                          .dtype = dtype,
                                                          .weight_layout = embedding->weight_layout()});
      EXPECT_EQ(matmul->weight_layout(), embedding->weight_layout()) << name;
      const std::vector<float> weight = random_normal(48 * 32, 1);
      std::vector<float> packed(embedding->weight_layout()->n_elements());
      embedding->weight_layout()->pack(weight, packed.data());
      EXPECT_EQ(packed, weight) << name << ": rows must be where an embedding looks for them";
    }
}

/// On the CPU, a matmul may have chosen a blocked layout for its weight.
TEST(Embedding, RejectsABlockedWeight) {
  if (!is_tested_device("cpu")) GTEST_SKIP() << "it tests the cpu backend";
  const auto backend = make_backend({.device = "cpu", .threads = 1});
  const auto layout =
      backend->make(MatmulDescription{.rows = 64, .in_features = 32, .out_features = 48})->weight_layout();
  std::vector<float> canonical(48 * 32), packed(layout->n_elements());
  for (std::size_t i = 0; i < canonical.size(); ++i) canonical[i] = static_cast<float>(i);
  layout->pack(canonical, packed.data());
  if (packed == canonical) GTEST_SKIP() << "oneDNN uses the canonical layout here";
  EXPECT_THROW(
      (void)backend->make(EmbeddingDescription{.rows = 6, .vocabulary = 48, .width = 32, .weight_layout = layout}),
      Error);
}

TEST(Embedding, RejectsImpossibleDescriptions) {
  for (auto& [name, backend] : tested_backends()) {
    const EmbeddingDescription good{.rows = 4, .vocabulary = 4, .width = 4};
    for (auto member : {&EmbeddingDescription::rows, &EmbeddingDescription::vocabulary, &EmbeddingDescription::width}) {
      EmbeddingDescription d = good;
      d.*member = 0;
      EXPECT_THROW((void)backend->make(d), Error) << name;
    }
    EmbeddingDescription d = good;
    d.dtype = DType::int32;
    EXPECT_THROW((void)backend->make(d), Error) << name;
  }
}

TEST(Embedding, AgreesWithFiniteDifferences) {
  const Case c{300, 7, 5};
  const EmbeddingDescription d = describe(c);
  const Inputs in(c, DType::fp32);
  std::vector<double> weight = to_double(in.weight), dweight(weight.size());
  const std::vector<double> dy = to_double(in.dy);
  std::vector<double> y(dy.size());
  reference::embedding_backward(d, in.ids.data(), dy.data(), dweight.data(), GradientMode::overwrite);
  EXPECT_TRUE(gradient_matches(weight, dweight, [&] {
    reference::embedding_forward(d, in.ids.data(), weight.data(), y.data());
    return dot(dy, y);
  }));
}

}  // namespace
}  // namespace lockstep::test

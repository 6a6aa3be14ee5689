// sanitizers: -Reorder.IsFast*
// Products by our own kernels, which are used where there is no oneDNN, on each instruction set and number of threads,
// compared with sums in double; and the layouts of parameters. Every build has these kernels.
#include "kernels/cpu/base/product.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "kernels/cpu/base/bf16.h"
#include "kernels/cpu/base/simd.h"
#include "lockstep/philox.h"

namespace lockstep::cpu {
namespace {

std::vector<float> values_of(std::int64_t n, std::uint32_t stream) {
  const Philox philox(7, RandomPurpose::synthetic, stream, 0);
  std::vector<float> values(static_cast<std::size_t>(n));
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(2 * philox.uniform(i) - 1);
  return values;
}

/// Values of a type, as stored in memory.
struct Stored {
  Stored(DType type, std::vector<float> values) : dtype(type) {
    for (const float value : values)
      if (dtype == DType::bf16)
        rounded.push_back(to_bf16(value));
      else
        exact.push_back(value);
  }
  void* data() { return dtype == DType::bf16 ? static_cast<void*>(rounded.data()) : exact.data(); }
  double at(std::int64_t i) const {
    const auto place = static_cast<std::size_t>(i);
    return dtype == DType::bf16 ? to_float(rounded[place]) : exact[place];
  }
  DType dtype;
  std::vector<float> exact;
  std::vector<Bf16> rounded;
};

struct FreeMemory {
  void operator()(void* p) const { std::free(p); }
};
std::unique_ptr<void, FreeMemory> workspace_of(std::size_t size_bytes) {
  return std::unique_ptr<void, FreeMemory>(std::aligned_alloc(64, (size_bytes + 64) / 64 * 64));
}

struct OwnProductCase {
  std::int64_t rows, inner, columns;
  bool a_is_transposed = false, b_is_transposed = false, has_bias = false, adds = false;
  std::int64_t gap = 0;  // elements between the rows of c
};

/// Sizes of one element, of part of a tile, and of several blocks of rows, of columns and of the inner dimension.
const OwnProductCase kCases[] = {
    {1, 1, 1},
    {5, 3, 7, true},
    {12, 256, 32, false, true},
    {13, 257, 33, true, true},
    {121, 40, 65, false, false, true},
    {27, 700, 64, true, false, false, true},
    {250, 300, 130, false, true, true},
    {6, 20, 2049, false, false, true, true},
    {1100, 17, 9, true, true, false, true},
    {130, 30, 70, false, true, true, false, 5},
    {7, 300, 2060, false, false, false, true, 3},
};

void expect_product(const OwnProductCase& p, DType dtype, DType c_type, int threads, std::vector<double>* bits) {
  const auto strides = [](std::int64_t rows, std::int64_t columns, bool is_transposed) {
    return is_transposed ? std::pair{std::int64_t{1}, rows} : std::pair{columns, std::int64_t{1}};
  };
  Stored a(dtype, values_of(p.rows * p.inner, 1)), b(dtype, values_of(p.inner * p.columns, 2));
  Stored bias(c_type, values_of(p.columns, 3)), c(c_type, values_of(p.rows * (p.columns + p.gap), 4));
  const Stored before = c;
  const auto product = make_own_product(
      {.a = {p.rows, p.inner, dtype, p.a_is_transposed},
       .b = {p.inner, p.columns, dtype, p.b_is_transposed},
       .c = {.rows = p.rows, .columns = p.columns, .dtype = c_type, .row_stride = p.gap > 0 ? p.columns + p.gap : 0},
       .has_bias = p.has_bias,
       .adds = p.adds},
      CpuContext{.threads = threads});
  const auto workspace = workspace_of(product->workspace_bytes());
  product->execute({.a = a.data(),
                    .b = b.data(),
                    .bias = p.has_bias ? bias.data() : nullptr,
                    .c = c.data(),
                    .workspace = workspace.get()});
  const auto [a_row, a_inner] = strides(p.rows, p.inner, p.a_is_transposed);
  const auto [b_inner, b_column] = strides(p.inner, p.columns, p.b_is_transposed);
  for (std::int64_t row = 0; row < p.rows; ++row) {
    for (std::int64_t i = row * (p.columns + p.gap) + p.columns; i < (row + 1) * (p.columns + p.gap); ++i)
      ASSERT_EQ(c.at(i), before.at(i)) << "after row " << row;
    for (std::int64_t column = 0; column < p.columns; ++column) {
      const std::int64_t i = row * (p.columns + p.gap) + column;
      double sum = (p.adds ? before.at(i) : 0.0) + (p.has_bias ? bias.at(column) : 0.0), magnitude = std::abs(sum);
      for (std::int64_t l = 0; l < p.inner; ++l) {
        const double term = a.at(row * a_row + l * a_inner) * b.at(l * b_inner + column * b_column);
        sum += term;
        magnitude += std::abs(term);
      }
      // fp32 sums of n terms in order have errors of about sqrt(n) units of the magnitude; bf16 has 8 bits.
      const double tolerance = 6e-8 * std::sqrt(static_cast<double>(p.inner) + 2) * magnitude +
                               (c_type == DType::bf16 ? std::abs(sum) / 256 : 0.0);
      ASSERT_NEAR(c.at(i), sum, tolerance) << "row " << row << ", column " << column;
      bits->push_back(c.at(i));
    }
  }
}

TEST(OwnProduct, MatchesSumsInDoubleOnEachInstructionSetAndNumberOfThreads) {
  for (const Isa limit : {Isa::baseline, Isa::avx2, Isa::avx512}) {
    if (limit > detect_isa()) continue;
    limit_isa(limit);
    for (const OwnProductCase& p : kCases)
      for (const DType dtype : {DType::fp32, DType::bf16})
        for (const DType c_type : {DType::fp32, DType::bf16}) {
          SCOPED_TRACE(std::string(name(limit)) + ": (" + std::to_string(p.rows) + ", " + std::to_string(p.inner) +
                       ", " + std::to_string(p.columns) + ")" + (dtype == DType::bf16 ? ", bf16" : "") +
                       (c_type == DType::bf16 ? " to bf16" : ""));
          std::vector<double> of_one;
          expect_product(p, dtype, c_type, 1, &of_one);
          for (const int threads : {2, 5}) {
            std::vector<double> bits;
            expect_product(p, dtype, c_type, threads, &bits);
            ASSERT_EQ(bits, of_one) << "the bits depend on the number of threads";
          }
        }
  }
  limit_isa(Isa::avx512);
}

/// The position of (k, c, r, s) according to the definition of each layout, padded with zeros.
TEST(BlockedLayout, PutsElementsWhereItsNotationSays) {
  const std::int64_t k_size = 19, c_size = 35, size = 3;
  const Sizes sizes{k_size, c_size, size, size};
  const auto values = values_of(k_size * c_size * size * size, 5);
  struct Expected {
    const char* notation;
    const char* described;
    std::size_t n_elements;
    std::int64_t (*place)(std::int64_t k, std::int64_t c, std::int64_t r, std::int64_t s);
  };
  const Expected all[] = {
      {"abcd", "abcd", 19 * 35 * 9, [](auto k, auto c, auto r, auto s) { return ((k * 35 + c) * 3 + r) * 3 + s; }},
      {"cdba", "cdba", 19 * 35 * 9, [](auto k, auto c, auto r, auto s) { return ((r * 3 + s) * 35 + c) * 19 + k; }},
      {"cdab", "cdab", 19 * 35 * 9, [](auto k, auto c, auto r, auto s) { return ((r * 3 + s) * 19 + k) * 35 + c; }},
      {"ABcd16b16a", "ABcd16b16a padded", 32 * 48 * 9,
       [](auto k, auto c, auto r, auto s) {
         return (((k / 16 * 3 + c / 16) * 3 + r) * 3 + s) * 256 + c % 16 * 16 + k % 16;
       }},
      {"ABcd8b16a2b", "ABcd8b16a2b padded", 32 * 48 * 9,
       [](auto k, auto c, auto r, auto s) {
         return (((k / 16 * 3 + c / 16) * 3 + r) * 3 + s) * 256 + c % 16 / 2 * 32 + k % 16 * 2 + c % 2;
       }},
  };
  for (const Expected& expected : all) {
    SCOPED_TRACE(expected.notation);
    const BlockedLayout layout(sizes, expected.notation);
    EXPECT_EQ(layout.describe(), expected.described);
    ASSERT_EQ(layout.n_elements(), expected.n_elements);
    std::vector<float> wanted(expected.n_elements, 0.0f), packed(expected.n_elements, 9.0f);
    std::size_t i = 0;
    for (std::int64_t k = 0; k < k_size; ++k)
      for (std::int64_t c = 0; c < c_size; ++c)
        for (std::int64_t r = 0; r < size; ++r)
          for (std::int64_t s = 0; s < size; ++s)
            wanted[static_cast<std::size_t>(expected.place(k, c, r, s))] = values[i++];
    layout.pack(values, packed.data());
    EXPECT_EQ(packed, wanted);
    std::vector<float> unpacked(values.size());
    layout.unpack(packed.data(), unpacked);
    EXPECT_EQ(unpacked, values);
  }
}

constexpr const char* kNotations[] = {"abcd", "cdba", "cdab", "ABcd16b16a", "ABcd16a16b", "Acdb24a"};
constexpr std::pair<DType, DType> kTypes[] = {
    {DType::fp32, DType::fp32}, {DType::bf16, DType::bf16}, {DType::bf16, DType::fp32}, {DType::fp32, DType::bf16}};

/// Our own reorders and those of the library, on any number of threads, between both types.
TEST(Reorder, MovesElementsFromAnyLayoutToAny) {
  const Sizes sizes{40, 70, 3, 3};
  const auto values = values_of(40 * 70 * 9, 6);
  for (const char* from_notation : kNotations)
    for (const char* to_notation : kNotations)
      for (const auto& [from_type, to_type] : kTypes)
        for (const bool is_own : {true, false}) {
          if (from_notation == to_notation) continue;
          SCOPED_TRACE(std::string(from_notation) + " to " + to_notation + (is_own ? ", own" : ""));
          const BlockedLayout from(sizes, from_notation), to(sizes, to_notation);
          std::vector<float> source(from.n_elements()), expected(to.n_elements());
          from.pack(values, source.data());
          to.pack(values, expected.data());
          Stored stored(from_type, source);
          Stored target(to_type, std::vector<float>(to.n_elements(), 9.0f));
          const CpuContext context{.threads = 3};
          const auto reorder = (is_own ? make_own_reorder : make_reorder)(from, from_type, to, to_type, context);
          reorder->execute(stored.data(), target.data(), workspace_of(reorder->workspace_bytes()).get());
          const bool rounds = from_type == DType::bf16 || to_type == DType::bf16;
          const Stored wanted(rounds ? DType::bf16 : DType::fp32, expected);
          for (std::size_t i = 0; i < expected.size(); ++i)
            ASSERT_EQ(target.at(static_cast<std::int64_t>(i)), wanted.at(static_cast<std::int64_t>(i))) << i;
        }
}

TEST(LayoutCopy, WritesEachElementOnceWithAnyNumberOfParts) {
  for (const Sizes& sizes : {Sizes{40, 70, 3, 3}, Sizes{1, 1, 1, 1}, Sizes{64, 5, 1, 1}, Sizes{3, 16, 7, 7}})
    for (const char* from_notation : kNotations)
      for (const char* to_notation : kNotations)
        for (const int parts : {1, 2, 7}) {
          SCOPED_TRACE(sizes_text(sizes) + ", " + from_notation + " to " + to_notation);
          const BlockedLayout from(sizes, from_notation), to(sizes, to_notation);
          const auto source = values_of(static_cast<std::int64_t>(from.n_elements()), 9);
          constexpr float kUntouched = 9.0f;
          std::vector<float> expected(to.n_elements(), kUntouched);
          std::vector<std::vector<std::int64_t>> from_offsets, to_offsets;
          for (std::size_t d = 0; d < sizes.size(); ++d) {
            from_offsets.push_back(from.offsets(d));
            to_offsets.push_back(to.offsets(d));
          }
          const auto place = [](const std::vector<std::vector<std::int64_t>>& offsets, const std::size_t(&index)[4]) {
            std::int64_t sum = 0;
            for (std::size_t d = 0; d < 4; ++d) sum += offsets[d][index[d]];
            return static_cast<std::size_t>(sum);
          };
          for (std::size_t a = 0; a < to_offsets[0].size(); ++a)
            for (std::size_t b = 0; b < to_offsets[1].size(); ++b)
              for (std::size_t c = 0; c < to_offsets[2].size(); ++c)
                for (std::size_t d = 0; d < to_offsets[3].size(); ++d)
                  expected[place(to_offsets, {a, b, c, d})] = source[place(from_offsets, {a, b, c, d})];
          const LayoutCopy copy(from, to);
          std::vector<float> target(to.n_elements(), kUntouched);
          for (int part = 0; part < parts; ++part) {
            std::vector<float> alone(to.n_elements(), kUntouched);
            copy.run(source.data(), alone.data(), part, parts);
            for (std::size_t i = 0; i < alone.size(); ++i) {
              if (alone[i] == kUntouched) continue;
              ASSERT_EQ(target[i], kUntouched) << "two parts wrote element " << i;
              target[i] = alone[i];
            }
          }
          ASSERT_EQ(target, expected);
        }
}

/// oneDNN's generic implementation for all layouts takes more than 100 times as long as its others. It is the only one
/// that oneDNN has for Acdb24a, the layout of weights of convolutions on AVX2, and for bf16 on AVX2. The sanitizers
/// slow down our own implementation, but not oneDNN's.
TEST(Reorder, IsFastBetweenAllLayoutsAndTypes) {
  const Sizes sizes{256, 256, 3, 3};
  const auto seconds = [&](const char* from_notation, DType from_type, const char* to_notation, DType to_type) {
    const BlockedLayout from(sizes, from_notation), to(sizes, to_notation);
    Stored source(from_type, std::vector<float>(from.n_elements()));
    Stored target(to_type, std::vector<float>(to.n_elements()));
    const auto reorder = make_reorder(from, from_type, to, to_type, CpuContext{});
    const auto workspace = workspace_of(reorder->workspace_bytes());
    double shortest = std::numeric_limits<double>::infinity();
    for (int i = 0; i < 5; ++i) {
      const auto begin = std::chrono::steady_clock::now();
      reorder->execute(source.data(), target.data(), workspace.get());
      const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - begin;
      shortest = std::min(shortest, taken.count());
    }
    return shortest;
  };
  const double bound = 20 * seconds("abcd", DType::fp32, "ABcd16b16a", DType::fp32);
  EXPECT_LT(seconds("ABcd16b16a", DType::fp32, "Acdb24a", DType::fp32), bound);
  EXPECT_LT(seconds("Acdb24a", DType::fp32, "ABcd16b16a", DType::fp32), bound);
  EXPECT_LT(seconds("Acdb24a", DType::bf16, "ABcd16b16a", DType::fp32), bound);
  EXPECT_LT(seconds("acdb", DType::bf16, "acdb", DType::fp32), bound);
  EXPECT_LT(seconds("acdb", DType::fp32, "acdb", DType::bf16), bound);
}

TEST(Reorder, DoesNothingWhereTheElementsStayInTheirPlaces) {
  const BlockedLayout matrix = BlockedLayout::row_major({3, 5});
  EXPECT_EQ(make_reorder(matrix, DType::fp32, matrix, DType::fp32, CpuContext{}), nullptr);
  // A dimension of size 1 may be anywhere, and so may one that consists of one block.
  for (const auto& [one, other] : {std::pair{"abcd", "cdab"}, std::pair{"abcd", "acdb"}}) {
    const BlockedLayout from({7, 5, 1, 1}, one), to({7, 5, 1, 1}, other);
    EXPECT_EQ(make_reorder(from, DType::bf16, to, DType::bf16, CpuContext{}), nullptr);
    EXPECT_EQ(make_own_reorder(from, DType::bf16, to, DType::bf16, CpuContext{}), nullptr);
    EXPECT_TRUE(from == to);
  }
  EXPECT_TRUE(BlockedLayout({16, 64, 1, 1}, "ABcd16b16a") == BlockedLayout({16, 64, 1, 1}, "AcdB16b16a"));
  EXPECT_FALSE(BlockedLayout({32, 64, 1, 1}, "ABcd16b16a") == BlockedLayout({32, 64, 1, 1}, "BAcd16b16a"));
}

TEST(Reorder, ConvertsTypes) {
  const BlockedLayout matrix = BlockedLayout::row_major({300, 500});
  const auto values = values_of(300 * 500, 8);
  const Stored rounded(DType::bf16, values);
  for (const bool is_own : {true, false}) {
    Stored exact(DType::fp32, values), narrow(DType::bf16, std::vector<float>(values.size()));
    const auto make = is_own ? make_own_reorder : make_reorder;
    const CpuContext context{.threads = 2};
    const auto rounding = make(matrix, DType::fp32, matrix, DType::bf16, context);
    rounding->execute(exact.data(), narrow.data(), workspace_of(rounding->workspace_bytes()).get());
    Stored wide(DType::fp32, std::vector<float>(values.size()));
    const auto widening = make(matrix, DType::bf16, matrix, DType::fp32, context);
    widening->execute(narrow.data(), wide.data(), workspace_of(widening->workspace_bytes()).get());
    for (std::int64_t i = 0; i < matrix.count(); ++i) ASSERT_EQ(wide.at(i), rounded.at(i)) << i;
  }
}

}  // namespace
}  // namespace lockstep::cpu

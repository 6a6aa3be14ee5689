// NF4 compared with bitsandbytes: the figures are made by test/golden/make_nf4_golden.py, which describes them.
#include "graph/nf4.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/file.h"
#include "base/hash.h"
#include "lockstep/bf16.h"
#include "lockstep/philox.h"

namespace lockstep::graph {
namespace {

template <typename T>
std::string hash_of(std::span<const T> values) {
  return hash_text(hash_bytes(std::as_bytes(values)));
}

std::vector<float> matrix_of(std::uint32_t number, std::int64_t n, bool is_bf16) {
  const Philox random(1, RandomPurpose::weights, number, 0);
  std::vector<float> out;
  for (std::int64_t i = 0; i < n; ++i)
    out.push_back(static_cast<float>(0.05 * random.normal(static_cast<std::uint64_t>(i))));
  if (number == 3) std::fill_n(out.begin(), 70, 0.0f);
  for (float& value : out) value = is_bf16 ? to_float(to_bf16(value)) : value;
  return out;
}

TEST(Nf4, HasTheBitsOfBitsandbytes) {
  const auto golden = nlohmann::json::parse(read_file("test/golden/nf4.json"));
  EXPECT_EQ(hash_of(std::span<const float>(nf4_scale_values())), golden["values"]);
  std::uint32_t number = 0;
  for (const auto& expected : golden["cases"]) {
    const std::int64_t rows = expected["rows"], columns = expected["columns"], n = rows * columns;
    SCOPED_TRACE(fmt::format("{} x {}", rows, columns));
    const bool is_bf16 = expected["dtype"] == "bf16";
    const std::vector<float> matrix = matrix_of(number++, n, is_bf16);
    const Nf4Layout layout = Nf4Layout::of(std::array{rows}, columns);
    const Nf4Matrix& at = layout.matrices.front();
    std::vector<std::byte> stored(layout.size_bytes);
    quantize_nf4(matrix, at, stored);
    const auto part = [&](std::size_t begin, std::int64_t n_bytes) {
      return hash_of(std::span<const std::byte>(stored).subspan(begin, static_cast<std::size_t>(n_bytes)));
    };
    const std::int64_t blocks = Nf4Layout::n_blocks(n);
    EXPECT_EQ(part(at.codes, (n + 1) / 2), expected["codes"]);
    EXPECT_EQ(part(at.scale_codes, blocks), expected["scale_codes"]);
    EXPECT_EQ(part(at.scales_of_scales, 4 * ((blocks + 255) / 256)), expected["scales_of_scales"]);
    EXPECT_EQ(*reinterpret_cast<const float*>(stored.data() + at.offset), expected["offset"].get<float>());
    std::vector<float> expanded = dequantize_nf4(matrix.size(), at, stored);
    for (float& value : expanded) value = is_bf16 ? to_float(to_bf16(value)) : value;
    EXPECT_EQ(hash_of(std::span<const float>(expanded)), expected["expanded"]);
  }
}

TEST(Nf4, TakesAtMost056BytesPerParameter) {
  for (const auto& [rows, in] : {std::pair{std::vector<std::int64_t>{576, 192, 192}, std::int64_t{576}},
                                 {{1536, 1536}, 576},
                                 {{896}, 4864},
                                 {{4864, 4864}, 896}}) {
    std::int64_t n = 0;
    for (const std::int64_t r : rows) n += r * in;
    EXPECT_LT(static_cast<double>(Nf4Layout::of(rows, in).size_bytes) / static_cast<double>(n), 0.5162);
  }
}

/// A matrix of zeros stays zero, and the matrices of a parameter do not affect each other.
TEST(Nf4, QuantisesEachMatrixByItself) {
  const Nf4Layout layout = Nf4Layout::of(std::array<std::int64_t, 2>{3, 5}, 7);
  std::vector<std::byte> stored(layout.size_bytes);
  const std::vector<float> first = matrix_of(1, 21, false), zeros(35);
  quantize_nf4(first, layout.matrices[0], stored);
  const std::vector<float> before = dequantize_nf4(first.size(), layout.matrices[0], stored);
  quantize_nf4(zeros, layout.matrices[1], stored);
  EXPECT_EQ(dequantize_nf4(first.size(), layout.matrices[0], stored), before);
  for (const float value : dequantize_nf4(zeros.size(), layout.matrices[1], stored)) EXPECT_NEAR(value, 0, 1e-37);
  for (std::size_t i = 0; i < first.size(); ++i) EXPECT_NEAR(before[i], first[i], 0.03);
}

}  // namespace
}  // namespace lockstep::graph

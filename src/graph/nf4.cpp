#include "graph/nf4.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

namespace lockstep::graph {
namespace {

constexpr float kLeastScale = 1e-38f;
constexpr std::size_t kLanes = 8, kSums = 4, kLevels = 4;
using Lanes = std::array<float, kLanes>;

void add(Lanes& sum, const float* values) {
  for (std::size_t i = 0; i < kLanes; ++i) sum[i] += values[i];
}

/// Sums rows of kSums vectors, each vector position by itself. Partial sums of 2^k rows are added to those of the next
/// level.
std::array<Lanes, kSums> sum_rows(const float* values, std::size_t n_rows) {
  std::array<std::array<Lanes, kSums>, kLevels> sums{};
  const std::size_t power = std::max<std::size_t>(4, std::bit_width(n_rows > 0 ? n_rows - 1 : 0) / kLevels);
  const std::size_t step = std::size_t{1} << power;
  const auto add_row = [&](std::size_t row) {
    for (std::size_t k = 0; k < kSums; ++k) add(sums[0][k], values + (row * kSums + k) * kLanes);
  };
  std::size_t row = 0;
  while (row + step <= n_rows) {
    for (const std::size_t end = row + step; row < end; ++row) add_row(row);
    for (std::size_t level = 1; level < kLevels; ++level) {
      for (std::size_t k = 0; k < kSums; ++k) add(sums[level][k], sums[level - 1][k].data());
      sums[level - 1] = {};
      if ((row & ((step - 1) << (level * power))) != 0) break;
    }
  }
  for (; row < n_rows; ++row) add_row(row);
  for (std::size_t level = 1; level < kLevels; ++level)
    for (std::size_t k = 0; k < kSums; ++k) add(sums[0][k], sums[level][k].data());
  return sums[0];
}

/// PyTorch's sum on x86 with one thread (aten/src/ATen/native/cpu/SumKernel.cpp).
float sum_of(std::span<const float> values) {
  const std::size_t n_vectors = values.size() / kLanes, n_rows = n_vectors / kSums;
  std::array<Lanes, kSums> sums = sum_rows(values.data(), n_rows);
  for (std::size_t i = n_rows * kSums; i < n_vectors; ++i) add(sums[0], values.data() + i * kLanes);
  for (std::size_t k = 1; k < kSums; ++k) add(sums[0], sums[k].data());
  float sum = 0;
  for (std::size_t i = n_vectors * kLanes; i < values.size(); ++i) sum += values[i];
  for (const float lane : sums[0]) sum += lane;
  return sum;
}

float greatest_magnitude(std::span<const float> values) {
  float greatest = 0;
  for (const float value : values) greatest = std::max(greatest, std::abs(value));
  return greatest;
}

/// The index of the nearest of several ascending values. If two are equally near, it is the lower one. `bounds` are
/// those of bounds_of().
template <std::size_t kN>
std::uint8_t nearest(const std::array<float, kN>& bounds, float value) {
  return static_cast<std::uint8_t>(std::ranges::lower_bound(bounds, value) - bounds.begin());
}

/// The midpoints between neighbouring values.
template <typename Values>
auto bounds_of(const Values& values) {
  std::array<float, std::tuple_size_v<Values> - 1> bounds{};
  for (std::size_t i = 0; i < bounds.size(); ++i) bounds[i] = (values[i] + values[i + 1]) / 2;
  return bounds;
}

/// The same for each element of a block. Counting the bounds below all elements at once takes vector instructions: a
/// search for each element took 2.3 times as long (4096x4096 on one thread, 0.195 s).
using Block = std::array<float, static_cast<std::size_t>(kNf4Block)>;
void find_nf4_codes(const Block& quotients, std::array<std::uint8_t, std::tuple_size_v<Block>>& codes) {
  static const auto bounds = bounds_of(std::to_array(kNf4Values));
  codes = {};
  for (const float bound : bounds)
    for (std::size_t i = 0; i < codes.size(); ++i)
      codes[i] = static_cast<std::uint8_t>(codes[i] + (bound < quotients[i] ? 1 : 0));
}

/// Looks up the code by the position of the quotient among 65,536 values from -1 to 1.
std::uint8_t scale_code(float quotient) {
  constexpr float kLast = 65535.0f;
  static const std::vector<std::uint8_t> table = [] {
    const auto bounds = bounds_of(nf4_scale_values());
    std::vector<std::uint8_t> codes(65536);
    for (std::size_t i = 0; i < codes.size(); ++i)
      codes[i] = nearest(bounds, static_cast<float>(static_cast<double>(i) * (2.0 / 65535) - 1));
    return codes;
  }();
  const float place = (std::clamp(quotient, -1.0f, 1.0f) + 1) * 0.5f * kLast + 0.5f;
  return table[static_cast<std::size_t>(place)];
}

void store(std::span<std::byte> target, std::size_t at, const auto& values) {
  std::memcpy(target.data() + at, values.data(), values.size() * sizeof(values[0]));
}

/// Writes the codes of a block, and returns its scale. An incomplete byte is completed with the code of 0.
float quantize_block(std::span<const float> block, std::uint8_t* codes) {
  const bool is_whole = static_cast<std::int64_t>(block.size()) == kNf4Block;
  float scale = greatest_magnitude(block);
  const float inverse = 1.0f / std::max(scale, kLeastScale);
  if (!is_whole) scale = std::max(scale, kLeastScale);
  Block quotients{};
  for (std::size_t i = 0; i < block.size(); ++i)
    quotients[i] = std::clamp(is_whole ? block[i] * inverse : block[i] / scale, -1.0f, 1.0f);
  std::array<std::uint8_t, std::tuple_size_v<Block>> unpacked;
  find_nf4_codes(quotients, unpacked);
  for (std::size_t i = 0; i < block.size(); i += 2)
    codes[i / 2] = static_cast<std::uint8_t>(unpacked[i] << 4 | unpacked[i + 1]);
  return scale;
}

}  // namespace

const std::array<float, kNf4ScaleValues>& nf4_scale_values() {
  static const std::array<float, kNf4ScaleValues> values = [] {
    std::array<float, kNf4ScaleValues> out{};
    std::size_t n = 0;
    for (int exponent = 0; exponent < 7; ++exponent) {
      // The midpoints of 2^exponent equal intervals from 0.1 to 1, whose ends are computed as in torch.linspace.
      const int ends = (1 << exponent) + 1;
      const float step = (1.0f - 0.1f) / static_cast<float>(ends - 1);
      const auto end = [&](int k) {
        return k < ends / 2 ? static_cast<float>(double{step} * k + double{0.1f})
                            : static_cast<float>(1.0 - double{step} * (ends - k - 1));
      };
      const auto power = static_cast<float>(std::pow(10.0, exponent - 6));
      for (int k = 0; k + 1 < ends; ++k) {
        const float value = power * ((end(k) + end(k + 1)) / 2);
        out[n++] = value;
        out[n++] = -value;
      }
    }
    out[n++] = 0;
    out[n++] = 1;
    std::ranges::sort(out);
    return out;
  }();
  return values;
}

void quantize_nf4(std::span<const float> matrix, const Nf4Matrix& at, std::span<std::byte> parameter) {
  constexpr auto kBlock = static_cast<std::size_t>(kNf4Block), kScales = static_cast<std::size_t>(kNf4ScaleBlock);
  std::vector<std::uint8_t> codes((matrix.size() + 1) / 2);
  std::vector<float> scales((matrix.size() + kBlock - 1) / kBlock);
#pragma omp parallel for schedule(static)
  for (std::size_t block = 0; block < scales.size(); ++block) {
    const std::size_t first = block * kBlock;
    scales[block] = quantize_block(matrix.subspan(first, std::min(kBlock, matrix.size() - first)), &codes[first / 2]);
  }
  const float offset = sum_of(scales) / static_cast<float>(scales.size());
  for (float& scale : scales) scale -= offset;
  std::vector<std::uint8_t> scale_codes;
  std::vector<float> scales_of_scales;
  for (std::size_t first = 0; first < scales.size(); first += kScales) {
    const auto block = std::span(scales).subspan(first, std::min(kScales, scales.size() - first));
    const float greatest = greatest_magnitude(block), inverse = greatest > 0 ? 1.0f / greatest : 0.0f;
    for (const float scale : block) scale_codes.push_back(greatest > 0 ? scale_code(scale * inverse) : std::uint8_t{0});
    scales_of_scales.push_back(greatest);
  }
  store(parameter, at.codes, codes);
  store(parameter, at.scale_codes, scale_codes);
  store(parameter, at.scales_of_scales, scales_of_scales);
  store(parameter, at.offset, std::array{offset});
}

std::vector<float> dequantize_nf4(std::size_t n_elements, const Nf4Matrix& at, std::span<const std::byte> parameter) {
  const auto* const codes = reinterpret_cast<const std::uint8_t*>(parameter.data() + at.codes);
  const auto* const scale_codes = reinterpret_cast<const std::uint8_t*>(parameter.data() + at.scale_codes);
  const auto* const scales_of_scales = reinterpret_cast<const float*>(parameter.data() + at.scales_of_scales);
  const float offset = *reinterpret_cast<const float*>(parameter.data() + at.offset);
  std::vector<float> out(n_elements);
  for (std::size_t i = 0; i < n_elements; ++i) {
    const std::size_t block = i / static_cast<std::size_t>(kNf4Block);
    const float scaled =
        nf4_scale_values()[scale_codes[block]] * scales_of_scales[block / static_cast<std::size_t>(kNf4ScaleBlock)];
    const float scale = scaled + offset;
    out[i] = kNf4Values[i % 2 == 0 ? codes[i / 2] >> 4 : codes[i / 2] & 15] * scale;
  }
  return out;
}

}  // namespace lockstep::graph

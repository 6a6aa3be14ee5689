#include "data/resize.h"

#include <algorithm>
#include <cmath>

#include "lockstep/error.h"

namespace lockstep::data {
namespace {

constexpr int kFractionBits = 22;  // 8 bits for the value and 2 bits of headroom remain of 32
constexpr std::int32_t kHalf = 1 << (kFractionBits - 1);

std::uint8_t to_byte(std::int32_t sum) { return static_cast<std::uint8_t>(std::clamp(sum >> kFractionBits, 0, 255)); }

/// One row: outputs x channels.
template <int channels>
void resize_row(const std::uint8_t* in, const int* first, const int* count, const std::int32_t* weights, int max_taps,
                int n_outputs, std::uint8_t* out) {
  for (int x = 0; x < n_outputs; ++x, weights += max_taps) {
    std::int32_t sum[channels];
    std::fill_n(sum, channels, kHalf);
    const std::uint8_t* pixel = in + std::ptrdiff_t{channels} * first[x];
    for (int k = 0; k < count[x]; ++k, pixel += channels)
      for (int c = 0; c < channels; ++c) sum[c] += weights[k] * pixel[c];
    for (int c = 0; c < channels; ++c) *out++ = to_byte(sum[c]);
  }
}

}  // namespace

void Resizer::Weights::make(double begin, double end, int n_inputs, int n_outputs) {
  const double scale = (end - begin) / n_outputs, support = std::max(1.0, scale);
  max_taps = static_cast<int>(std::ceil(support)) * 2 + 1;
  first.resize(static_cast<std::size_t>(n_outputs));
  count.resize(static_cast<std::size_t>(n_outputs));
  weights.resize(static_cast<std::size_t>(n_outputs) * static_cast<std::size_t>(max_taps));
  scratch.resize(static_cast<std::size_t>(max_taps));
  for (int i = 0; i < n_outputs; ++i) {
    const double centre = begin + (i + 0.5) * scale;
    const int from = std::clamp(static_cast<int>(std::floor(centre - support + 0.5)), 0, n_inputs - 1);
    const int to = std::clamp(static_cast<int>(std::floor(centre + support + 0.5)), from + 1, n_inputs);
    const int n = std::min(to - from, max_taps);
    double sum = 0;
    for (int k = 0; k < n; ++k)
      sum += scratch[static_cast<std::size_t>(k)] = std::max(0.0, 1.0 - std::abs((from + k + 0.5 - centre) / support));
    first[static_cast<std::size_t>(i)] = from;
    count[static_cast<std::size_t>(i)] = n;
    std::int32_t* row = weights.data() + static_cast<std::ptrdiff_t>(i) * max_taps;
    for (int k = 0; k < n; ++k)
      row[k] = static_cast<std::int32_t>(scratch[static_cast<std::size_t>(k)] / sum * (1 << kFractionBits) + 0.5);
  }
}

void Resizer::resize(const PixelView& image, const Box& box, int height, int width, std::span<std::uint8_t> out) {
  const int channels = image.channels;
  require(height > 0 && width > 0 && box.left >= 0 && box.top >= 0 && box.left < box.right && box.top < box.bottom &&
              box.right <= image.width && box.bottom <= image.height && (channels == 1 || channels == 3) &&
              out.size() == static_cast<std::size_t>(height) * width * channels,
          ErrorCode::internal, "a box of [{}, {}) x [{}, {}) of {} x {} x {} cannot be resized to {} x {}", box.top,
          box.bottom, box.left, box.right, image.height, image.width, channels, height, width);
  along_rows_.make(box.left, box.right, image.width, width);
  along_columns_.make(box.top, box.bottom, image.height, height);

  const int first_row = along_columns_.first.front();
  const int n_rows = along_columns_.first.back() + along_columns_.count.back() - first_row;
  const std::size_t row_bytes = static_cast<std::size_t>(width) * channels;
  rows_.resize(std::max(rows_.size(), n_rows * row_bytes));
  const auto along_rows = channels == 3 ? resize_row<3> : resize_row<1>;
  for (int y = 0; y < n_rows; ++y)
    along_rows(image.bytes + (std::ptrdiff_t{first_row} + y) * image.row_bytes, along_rows_.first.data(),
               along_rows_.count.data(), along_rows_.weights.data(), along_rows_.max_taps, width,
               rows_.data() + y * row_bytes);

  sums_.resize(row_bytes);
  for (int y = 0; y < height; ++y) {
    std::fill(sums_.begin(), sums_.end(), kHalf);
    const auto at = static_cast<std::size_t>(y);
    const std::int32_t* weights =
        along_columns_.weights.data() + static_cast<std::ptrdiff_t>(y) * along_columns_.max_taps;
    const std::uint8_t* row = rows_.data() + (along_columns_.first[at] - first_row) * row_bytes;
    for (int k = 0; k < along_columns_.count[at]; ++k, row += row_bytes)
      for (std::size_t i = 0; i < row_bytes; ++i) sums_[i] += weights[k] * row[i];
    for (std::size_t i = 0; i < row_bytes; ++i) out[at * row_bytes + i] = to_byte(sums_[i]);
  }
}

}  // namespace lockstep::data

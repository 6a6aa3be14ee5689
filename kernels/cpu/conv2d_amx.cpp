// Own bf16 convolutions on AMX, in nhwc. All three directions are products of tiles over *positions*: the output's
// pixels, row by row, with a border of zeros that neighbouring rows and images share, so that a tap of the window is a
// constant distance in memory and 16 positions are the rows of a tile whatever the width of an image.
//
// With a stride of 2 the input is packed as four planes (even and odd rows and columns), each as large as the output,
// so that the same holds; the data gradient is then computed plane by plane.
//
//   forward          y[p][k]    = sum over taps, c of x[p + tap][c] w[tap][c][k]
//   data gradient    dx[p][c]   = sum over taps, k of dy[p - tap][k] w[tap][k][c]
//   weight gradient  dw[c][k]  += sum over p of x[p + tap][c] dy[p][k]
//
// Sums are fp32, in an order that does not depend on the number of threads. Each call of forward and data gradient
// copies the weights, which are bf16, into tiles.
#include "kernels/cpu/conv2d_bare.h"

#ifdef __x86_64__
#include <algorithm>
#include <vector>

#include "kernels/cpu/base/amx.h"
#include "kernels/cpu/base/parallel.h"
#include "kernels/cpu/conv2d_amx_kernels.h"
#include "lockstep/workspace.h"

namespace lockstep::cpu {
namespace {

constexpr std::int64_t kBlock = 32;                           // channels, and also positions, of 2 x 2 tiles
constexpr std::int64_t kPackedBytes = std::int64_t{1} << 20;  // of images packed together: half of a core's L2 cache
constexpr std::int64_t kTilePair = 2 * amx::kTile;
// The operand that is reused stays in the L1 cache (48 KiB): weights of some chunks of input channels, which are used
// for a group of blocks of positions; or positions of x and dy, which are used for all taps.
constexpr std::int64_t kWeightPairs = 18, kGroup = 8, kPositionBlocks = 10;

/// Positions of images of height x width pixels with a border. `begin` positions precede the first
/// image.
struct Positions {
  std::int64_t height = 0, width = 0, border = 0;

  std::int64_t pitch() const { return width + border; }
  std::int64_t image() const { return (height + border) * pitch(); }
  std::int64_t begin() const { return border * (pitch() + 1); }
  /// The number of blocks of positions for this many images.
  std::int64_t blocks(std::int64_t images) const { return (images * image() + kBlock - 1) / kBlock; }
  /// The number of positions in these blocks, plus those before and after them that taps reach.
  std::int64_t total(std::int64_t images) const { return blocks(images) * kBlock + 2 * begin(); }
};

/// A part of an image (height, width, channels): every stride-th pixel in both directions, beginning at (row, column).
struct Plane {
  std::int64_t row = 0, column = 0, stride = 1;
};

/// Which plane of the packed input a tap reads, and its distance from the output's position.
struct Tap {
  std::int64_t plane = 0, distance = 0;  // in positions
};

/// The layout of the weights: (K/16, C/16, R, S, 16 k, 16 c).
BlockedLayout tiles_of(const Conv2dDescription& d) {
  return {{d.out_channels, d.x[3], d.kernel_size, d.kernel_size}, "ABcd16a16b"};
}

std::int64_t floor_divide(std::int64_t a, std::int64_t b) { return a >= 0 ? a / b : -((-a + b - 1) / b); }

class AmxConvolution final : public BareConvolution {
 public:
  AmxConvolution(const Conv2dDescription& d, Direction direction, const CpuContext& context);

  std::shared_ptr<const BlockedLayout> weight_layout() const override { return layout_; }
  std::size_t workspace_bytes() const override { return bytes_; }
  std::string describe() const override { return "own kernels on AMX"; }

  void run(const void* from, const void* weight, void* to, void* workspace) override;
  void weight_gradient(const void* x, const void* dy, float* dweight, bool accumulate, void* workspace) override;

 private:
  struct Image {
    std::int64_t height = 0, width = 0, channels = 0;
    std::int64_t n_elements() const { return height * width * channels; }
  };
  /// One product, from packed input to a plane of the output.
  struct Product {
    std::vector<Tap> taps;
    std::vector<int> window;  // the positions of the taps in the window
    Plane to;
    std::vector<std::int32_t> pixels;  // the output pixel for each position of an image; -1: none
  };

  void plan_weight_gradient();
  Product make_product(const Plane& to, const Image& output) const;
  /// Packs 32 channels of a plane of `count` images, from image `first` on, into positions (total, 32), surrounded by
  /// zeros.
  void pack(const Bf16* images, const Image& shape, const Plane& plane, std::int64_t channel, std::int64_t first,
            std::int64_t count, Bf16* to, std::int64_t total) const;
  void pack_weights(const Product& product, const Bf16* weight, Bf16* to, Range blocks) const;
  void multiply(const Product& product, const amx::Rows& rows, std::int64_t plane_size, std::int64_t chunks,
                const Bf16* weights, Bf16* to, const Image& output, std::int64_t images) const;
  /// x and dy of some images, in tiles of 16 channels, as the weight gradient multiplies them.
  struct GradientTiles {
    Bf16 *rows = nullptr, *columns = nullptr;
    std::int64_t total = 0, phases = 0;
    Bf16* rows_of(std::int64_t k) const { return rows + k * total * 16; }  // of dy
    Bf16* columns_of(std::int64_t c, std::int64_t phase) const { return columns + (c * phases + phase) * total * 16; }
  };
  void gather(const GradientTiles& tiles, const void* x, const void* dy, std::int64_t first, std::int64_t count,
              Bf16* packed, Range units) const;
  void multiply_positions(const GradientTiles& tiles, std::int64_t blocks, float* dweight, bool add, Range units) const;
  /// What a run reads and writes.
  const Image& input() const { return over_k_ ? y_ : x_; }
  const Image& output() const { return over_k_ ? x_ : y_; }
  const std::vector<Plane>& planes() const { return over_k_ ? y_planes_ : x_planes_; }
  std::size_t run_bytes() const;
  std::int64_t run_at_once() const;
  std::int64_t gradient_at_once() const;
  /// Tiles of x hold pairs of positions. Taps at an odd distance need a second set, whose pairs are shifted by one
  /// position.
  std::int64_t phases() const { return n_taps_ > 1 ? 2 : 1; }

  std::int64_t images_at_once(std::int64_t bytes_an_image) const {
    const std::int64_t each = (images_ + parts_ - 1) / parts_;
    return std::clamp<std::int64_t>(kPackedBytes / bytes_an_image, 1, each);
  }

  std::int64_t images_;
  Image x_, y_;
  Positions positions_;
  bool over_k_;    // a run is the data gradient, which sums over k
  bool in_place_;  // x and dy are read in place
  int n_taps_, parts_;
  std::vector<Plane> x_planes_, y_planes_{Plane{}};
  std::vector<Product> forward_, data_;
  std::shared_ptr<const BlockedLayout> layout_;
  std::size_t bytes_ = 0;
  struct {
    std::size_t packed = 0, rows = 0, columns = 0;
  } weights_at_;
};

AmxConvolution::AmxConvolution(const Conv2dDescription& d, Direction direction, const CpuContext& context)
    : images_(d.x[0]),
      x_{d.x[1], d.x[2], d.x[3]},
      y_{d.y()[1], d.y()[2], d.out_channels},
      positions_{y_.height, y_.width, (d.padding + d.stride - 1) / d.stride},
      over_k_(direction == Direction::data_gradient),
      in_place_(d.kernel_size == 1 && d.stride == 1 && images_ * x_.height * x_.width % kBlock == 0),
      n_taps_(d.kernel_size * d.kernel_size),
      parts_(static_cast<int>(std::min<std::int64_t>(std::max(1, context.threads), images_))) {
  if (in_place_) {  // since taps read no neighbours, pixels can form images of one block of positions
    images_ = images_ * x_.height * x_.width / kBlock;
    x_ = {1, kBlock, x_.channels};
    y_ = {1, kBlock, y_.channels};
    positions_ = {1, kBlock, 0};
    parts_ = static_cast<int>(std::min<std::int64_t>(std::max(1, context.threads), images_));
  }
  layout_ = as_blocked_layout(d.weight_layout, tiles_of(d).sizes());
  if (!layout_) layout_ = std::make_shared<BlockedLayout>(tiles_of(d));
  for (std::int64_t row = 0; row < d.stride; ++row)
    for (std::int64_t column = 0; column < d.stride; ++column) x_planes_.push_back({row, column, d.stride});

  // A tap that is t pixels away from (output pixel * stride) reads plane t mod stride, floor(t / stride) positions
  // away.
  Product forward = make_product({}, y_);
  for (const Plane& plane : x_planes_) data_.push_back(make_product(plane, x_));
  for (int tap = 0; tap < n_taps_; ++tap) {
    const std::int64_t row = tap / d.kernel_size - d.padding, column = tap % d.kernel_size - d.padding;
    const std::int64_t rows = floor_divide(row, d.stride), columns = floor_divide(column, d.stride);
    const std::int64_t plane = (row - rows * d.stride) * d.stride + column - columns * d.stride;
    const std::int64_t distance = rows * positions_.pitch() + columns;
    forward.taps.push_back({plane, distance});
    forward.window.push_back(tap);
    data_[static_cast<std::size_t>(plane)].taps.push_back({0, -distance});
    data_[static_cast<std::size_t>(plane)].window.push_back(tap);
  }
  forward_.push_back(std::move(forward));
  if (d.kernel_size == 1) x_planes_.resize(1);  // no tap reads the other planes

  if (direction == Direction::weight_gradient)
    plan_weight_gradient();
  else
    bytes_ = run_bytes();
}

void AmxConvolution::plan_weight_gradient() {
  const std::int64_t total = positions_.total(gradient_at_once());
  const auto n_planes = static_cast<std::int64_t>(x_planes_.size());
  const auto bytes = [](std::int64_t n_elements) { return static_cast<std::size_t>(n_elements) * sizeof(Bf16); };
  WorkspacePlan workspace;
  weights_at_.packed = workspace.take(in_place_ ? 0 : bytes(parts_ * (total + 1) * kBlock));
  weights_at_.rows = workspace.take(bytes(total * y_.channels));
  weights_at_.columns = workspace.take(bytes(n_planes * x_.channels * phases() * total));
  bytes_ = workspace.size_bytes();
}

AmxConvolution::Product AmxConvolution::make_product(const Plane& to, const Image& output) const {
  Product product{.taps = {}, .window = {}, .to = to, .pixels = {}};
  for (std::int64_t h = 0; h < positions_.height + positions_.border; ++h)
    for (std::int64_t w = 0; w < positions_.pitch(); ++w) {
      const std::int64_t row = to.row + h * to.stride, column = to.column + w * to.stride;
      const bool real = h < positions_.height && w < positions_.width && row < output.height && column < output.width;
      product.pixels.push_back(real ? static_cast<std::int32_t>(row * output.width + column) : -1);
    }
  return product;
}

void AmxConvolution::pack(const Bf16* images, const Image& shape, const Plane& plane, std::int64_t channel,
                          std::int64_t first, std::int64_t count, Bf16* to, std::int64_t total) const {
  Bf16* const end = to + total * kBlock;
  const auto clear = [](Bf16* begin, const Bf16* stop) {
    std::memset(static_cast<void*>(begin), 0, static_cast<std::size_t>(stop - begin) * sizeof(Bf16));
  };
  clear(to, to + positions_.begin() * kBlock);
  to += positions_.begin() * kBlock;
  const std::int64_t columns = (shape.width - plane.column + plane.stride - 1) / plane.stride;
  for (std::int64_t n = first; n < first + count; ++n) {
    const Bf16* image = images + n * shape.n_elements() + channel;
    for (std::int64_t h = 0; h < positions_.height + positions_.border; ++h, to += positions_.pitch() * kBlock) {
      const std::int64_t row = plane.row + h * plane.stride;
      const std::int64_t pixels = h < positions_.height && row < shape.height ? columns : 0;
      amx::copy_rows(image + (row * shape.width + plane.column) * shape.channels, plane.stride * shape.channels, pixels,
                     to);
      clear(to + pixels * kBlock, to + positions_.pitch() * kBlock);
    }
  }
  clear(to, end);
}

/// Packs the weights for blocks of 32 output channels of the product. Each block is (input channels / 32, taps, two
/// tiles).
void AmxConvolution::pack_weights(const Product& product, const Bf16* weight, Bf16* to, Range blocks) const {
  const std::int64_t c_blocks = x_.channels / 16;
  const auto block = [&](std::int64_t k, std::int64_t c, int tap) {
    return weight + ((k * c_blocks + c) * n_taps_ + tap) * 256;
  };
  const std::int64_t chunks = input().channels / kBlock;
  to += blocks.begin * static_cast<std::int64_t>(product.window.size()) * chunks * kTilePair;
  for (std::int64_t out = blocks.begin; out < blocks.end; ++out)
    for (std::int64_t chunk = 0; chunk < chunks; ++chunk)
      for (const int tap : product.window)
        for (int half = 0; half < 2; ++half, to += amx::kTile) {
          if (over_k_)
            amx::weights_over_k(block(2 * chunk, 2 * out + half, tap), block(2 * chunk + 1, 2 * out + half, tap), to);
          else
            amx::weights_over_c(block(2 * out + half, 2 * chunk, tap), block(2 * out + half, 2 * chunk + 1, tap), to);
        }
}

/// Computes the plane of the output for `images` images, whose first position is that of `rows`.
void AmxConvolution::multiply(const Product& product, const amx::Rows& rows, std::int64_t plane_size,
                              std::int64_t chunks, const Bf16* weights, Bf16* to, const Image& output,
                              std::int64_t images) const {
  std::int64_t distances[49];
  for (std::size_t t = 0; t < product.taps.size(); ++t)
    distances[t] = (product.taps[t].plane * plane_size + product.taps[t].distance * rows.row) *
                   static_cast<std::int64_t>(sizeof(Bf16));
  const int n_taps = static_cast<int>(product.taps.size());
  const std::int64_t image = positions_.image(), n_positions = images * image;
  const std::int64_t segment = std::max<std::int64_t>(1, kWeightPairs / std::max(1, n_taps));  // chunks
  alignas(64) float sums[kGroup][kBlock * kBlock];
  for (std::int64_t group = 0; group < n_positions; group += kGroup * kBlock) {
    const std::int64_t n_blocks = std::min(kGroup, (n_positions - group + kBlock - 1) / kBlock);
    const Bf16* columns = weights;
    for (std::int64_t channel = 0; channel < output.channels; channel += kBlock) {
      for (std::int64_t chunk = 0; chunk < chunks; chunk += segment) {
        const std::int64_t n_chunks = std::min(segment, chunks - chunk);
        for (std::int64_t block = 0; block < n_blocks; ++block)
          amx::row_block(rows.at(group + block * kBlock, chunk), distances, n_taps, n_chunks, columns, sums[block],
                         chunk > 0);
        columns += n_taps * n_chunks * kTilePair;
      }
      std::int64_t n = group / image, pixel = group % image;
      const std::int64_t n_rows = std::min(n_blocks * kBlock, n_positions - group);
      for (std::int64_t row = 0; row < n_rows; ++row) {
        const std::int32_t at = product.pixels[static_cast<std::size_t>(pixel)];
        if (at >= 0)
          amx::store_bf16(to + n * output.n_elements() + at * output.channels + channel, sums[0] + row * kBlock);
        if (++pixel == image) {
          pixel = 0;
          ++n;
        }
      }
    }
  }
}

std::int64_t AmxConvolution::run_at_once() const {
  if (in_place_) return images_;
  return images_at_once(std::ssize(planes()) * positions_.image() * input().channels * 2);
}

std::int64_t AmxConvolution::gradient_at_once() const {
  const std::int64_t channels = static_cast<std::int64_t>(x_planes_.size()) * x_.channels + y_.channels;
  return images_at_once(positions_.image() * channels * 2);
}

std::size_t AmxConvolution::run_bytes() const {
  const std::int64_t total = positions_.total(run_at_once());
  WorkspacePlan workspace;
  workspace.take(static_cast<std::size_t>(n_taps_ * x_.channels * y_.channels) * sizeof(Bf16));
  if (!in_place_)
    workspace.take(static_cast<std::size_t>(parts_ * std::ssize(planes()) * total * input().channels) * sizeof(Bf16));
  return workspace.size_bytes();
}

/// The images are divided among threads. Each thread packs some of its images at a time.
void AmxConvolution::run(const void* from, const void* weight, void* to, void* workspace) {
  const std::vector<Product>& products = over_k_ ? data_ : forward_;
  Bf16* const weights = static_cast<Bf16*>(workspace);
  Bf16* const packed = weights + n_taps_ * x_.channels * y_.channels;
  const std::int64_t out_blocks = output().channels / kBlock;
  const auto weights_of = [&](std::size_t product) {
    std::int64_t taps = 0;
    for (std::size_t i = 0; i < product; ++i) taps += static_cast<std::int64_t>(products[i].taps.size());
    return weights + taps * x_.channels * y_.channels;
  };
  run_ranges(parts_, out_blocks, [&](Range range) {
    for (std::size_t i = 0; i < products.size(); ++i)
      pack_weights(products[i], static_cast<const Bf16*>(weight), weights_of(i), range);
  });
  const std::int64_t at_once = run_at_once(), chunks = input().channels / kBlock;
  const std::int64_t total = positions_.total(at_once), plane_size = chunks * total * kBlock;
  run_parts(parts_, [&](int part) {
    const amx::Tiles tiles;
    Bf16* const mine = packed + part * std::ssize(planes()) * plane_size;
    const Range images = part_of(images_, part, parts_);
    for (std::int64_t first = images.begin; first < images.end; first += at_once) {
      const std::int64_t count = std::min(at_once, images.end - first);
      amx::Rows rows{static_cast<const Bf16*>(from) + first * input().n_elements(), input().channels, kBlock};
      if (!in_place_) {
        Bf16* to_plane = mine;
        for (const Plane& plane : planes())
          for (std::int64_t chunk = 0; chunk < chunks; ++chunk, to_plane += total * kBlock)
            pack(static_cast<const Bf16*>(from), input(), plane, chunk * kBlock, first, count, to_plane, total);
        rows = {mine + positions_.begin() * kBlock, kBlock, total * kBlock};
      }
      for (std::size_t i = 0; i < products.size(); ++i)
        multiply(products[i], rows, plane_size, chunks, weights_of(i),
                 static_cast<Bf16*>(to) + first * output().n_elements(), output(), count);
    }
  });
}

/// Fills the tiles. Units are chunks of 32 channels: first those of x's planes, then those of dy. `packed` has space
/// for one chunk.
void AmxConvolution::gather(const GradientTiles& tiles, const void* x, const void* dy, std::int64_t first,
                            std::int64_t count, Bf16* packed, Range units) const {
  const std::int64_t c_chunks = x_.channels / kBlock, blocks = positions_.blocks(count);
  const std::int64_t x_units = static_cast<std::int64_t>(x_planes_.size()) * c_chunks;
  // Returns 32 channels in positions. The first position is preceded by those that taps reach.
  const auto source = [&](const void* images, const Image& shape, const Plane& plane, std::int64_t chunk) {
    if (in_place_)
      return amx::Rows{static_cast<const Bf16*>(images) + first * shape.n_elements() + chunk * kBlock, shape.channels,
                       0};
    pack(static_cast<const Bf16*>(images), shape, plane, chunk * kBlock, first, count, packed, tiles.total + 1);
    return amx::Rows{packed, kBlock, 0};
  };
  for (std::int64_t unit = units.begin; unit < std::min(units.end, x_units); ++unit) {
    const amx::Rows from = source(x, x_, x_planes_[static_cast<std::size_t>(unit / c_chunks)], unit % c_chunks);
    const std::int64_t n_positions = blocks * kBlock + 2 * positions_.begin();
    for (std::int64_t block = 0; block < n_positions; block += kBlock) {
      const std::int64_t position = std::min(block, n_positions - kBlock);  // the last block may overlap the one before
      for (std::int64_t half = 0; half < 2; ++half)
        for (std::int64_t phase = 0; phase < tiles.phases; ++phase)
          amx::pairs_of_positions(from.base + (position + phase) * from.row + half * 16, from.row,
                                  tiles.columns_of(2 * unit + half, phase) + position * 16);
    }
  }
  for (std::int64_t chunk = std::max(units.begin, x_units) - x_units; chunk < units.end - x_units; ++chunk) {
    const amx::Rows from = source(dy, y_, y_planes_[0], chunk).at(positions_.begin(), 0);
    for (std::int64_t block = 0; block < blocks; ++block)
      for (std::int64_t half = 0; half < 2; ++half)
        amx::transpose_positions(from.base + block * kBlock * from.row + half * 16, from.row,
                                 tiles.rows_of(2 * chunk + half) + block * amx::kTile);
  }
}

/// Computes dweight of all taps from these blocks of positions. Units are 32 input channels by 32 output channels.
void AmxConvolution::multiply_positions(const GradientTiles& tiles, std::int64_t blocks, float* dweight, bool add,
                                        Range units) const {
  const amx::Tiles registers;
  const std::int64_t c_chunks = x_.channels / kBlock;
  for (std::int64_t unit = units.begin; unit < units.end; ++unit) {
    const std::int64_t c = unit % c_chunks, k = unit / c_chunks;
    for (std::int64_t block = 0; block < blocks; block += kPositionBlocks)
      for (int tap = 0; tap < n_taps_; ++tap) {
        const Tap& t = forward_[0].taps[static_cast<std::size_t>(tap)];
        const std::int64_t position = positions_.begin() + t.distance + block * kBlock;
        const std::int64_t channel = 2 * (t.plane * c_chunks + c), pairs = position / 2 * 32;
        const Bf16* const row_pair[2] = {tiles.rows_of(2 * k) + block * amx::kTile,
                                         tiles.rows_of(2 * k + 1) + block * amx::kTile};
        const Bf16* const column_pair[2] = {tiles.columns_of(channel, position % 2) + pairs,
                                            tiles.columns_of(channel + 1, position % 2) + pairs};
        const auto sums_of = [&](std::int64_t k_half, std::int64_t c_half) {
          return dweight + (((2 * k + k_half) * 2 * c_chunks + 2 * c + c_half) * n_taps_ + tap) * 256;
        };
        float* const sums[4] = {sums_of(0, 0), sums_of(0, 1), sums_of(1, 0), sums_of(1, 1)};
        amx::weight_block(row_pair, column_pair, std::min(kPositionBlocks, blocks - block), sums, add || block > 0);
      }
  }
}

void AmxConvolution::weight_gradient(const void* x, const void* dy, float* dweight, bool accumulate, void* workspace) {
  const std::int64_t at_once = gradient_at_once();
  const std::int64_t c_chunks = x_.channels / kBlock, k_chunks = y_.channels / kBlock;
  const std::int64_t n_gathered = static_cast<std::int64_t>(x_planes_.size()) * c_chunks + k_chunks;
  const GradientTiles tiles{.rows = at<Bf16>(workspace, weights_at_.rows),
                            .columns = at<Bf16>(workspace, weights_at_.columns),
                            .total = positions_.total(at_once),
                            .phases = phases()};
  for (std::int64_t first = 0; first < images_; first += at_once) {
    const std::int64_t count = std::min(at_once, images_ - first);
    run_parts(parts_, [&](int part) {
      Bf16* const mine = at<Bf16>(workspace, weights_at_.packed) + part * (tiles.total + 1) * kBlock;
      gather(tiles, x, dy, first, count, mine, part_of(n_gathered, part, parts_));
    });
    run_ranges(parts_, c_chunks * k_chunks, [&](Range range) {
      multiply_positions(tiles, positions_.blocks(count), dweight, accumulate || first > 0, range);
    });
  }
}

}  // namespace

bool amx_convolution_fits(const Conv2dDescription& d, Direction) {
  if (d.dtype != DType::bf16 || d.x_layout != Layout::nhwc || d.y_layout != Layout::nhwc || d.x[3] % kBlock != 0 ||
      d.out_channels % kBlock != 0 || d.kernel_size % 2 == 0 || d.kernel_size > 7 || d.padding != d.kernel_size / 2 ||
      (d.stride != 1 && d.stride != 2) || !amx_is_usable())
    return false;
  const auto layout = as_blocked_layout(d.weight_layout, tiles_of(d).sizes());
  return !layout || *layout == tiles_of(d);
}

std::unique_ptr<BareConvolution> make_amx_convolution(const Conv2dDescription& d, Direction direction,
                                                      const CpuContext& context) {
  return std::make_unique<AmxConvolution>(d, direction, context);
}

}  // namespace lockstep::cpu

#else
namespace lockstep::cpu {

bool amx_convolution_fits(const Conv2dDescription&, Direction) { return false; }
std::unique_ptr<BareConvolution> make_amx_convolution(const Conv2dDescription&, Direction, const CpuContext&) {
  return nullptr;
}

}  // namespace lockstep::cpu
#endif

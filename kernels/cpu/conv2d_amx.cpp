#include "kernels/cpu/conv2d_amx.h"

#include <algorithm>
#include <vector>

#include "kernels/cpu/amx.h"
#include "kernels/cpu/conv2d_amx_kernels.h"
#include "kernels/cpu/conv2d_plan.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/workspace.h"

namespace lockstep::cpu {
namespace {

using dnnl::memory;

constexpr std::int64_t kBlock = 32;                           // channels, and positions, of 2 x 2 tiles
constexpr std::int64_t kPackedBytes = std::int64_t{1} << 20;  // of images packed together: half of a core's L2

/// Positions (conv2d_amx.h) of images of height x width pixels with a border; `begin` of them lie before the first.
struct Positions {
  std::int64_t height = 0, width = 0, border = 0;

  std::int64_t pitch() const { return width + border; }
  std::int64_t image() const { return (height + border) * pitch(); }
  std::int64_t begin() const { return border * (pitch() + 1); }
  /// Of so many images, in whole blocks.
  std::int64_t blocks(std::int64_t images) const { return (images * image() + kBlock - 1) / kBlock; }
  /// With what taps reach before and behind.
  std::int64_t total(std::int64_t images) const { return blocks(images) * kBlock + 2 * begin(); }
};

/// One image's tensor: (height, width, channels), every stride-th pixel of both directions from (row, column) on.
struct Plane {
  std::int64_t row = 0, column = 0, stride = 1;
};

/// Which plane of the packed input a tap reads, and how far from the output's position.
struct Tap {
  std::int64_t plane = 0, distance = 0;  // in positions
};

std::int64_t floor_divide(std::int64_t a, std::int64_t b) { return a >= 0 ? a / b : -((-a + b - 1) / b); }

class AmxConvolution final : public BareConvolution {
 public:
  AmxConvolution(const Conv2dDescription& d, const CpuContext& context);

  std::shared_ptr<const OnednnLayout> weight_layout() const override { return layout_; }
  WorkspaceBytes workspace_bytes() const override { return bytes_; }
  std::string describe() const override { return "all directions by own kernels on AMX"; }

  void forward(const void* x, const float* weight, void* y, void* workspace) override;
  void weight_gradient(const void* x, const void* dy, float* dweight, bool accumulate, void* workspace) override;
  void data_gradient(const void* dy, const float* weight, void* dx, void* workspace) override;

 private:
  struct Image {
    std::int64_t height = 0, width = 0, channels = 0;
    std::int64_t n_elements() const { return height * width * channels; }
  };
  /// One product: packed input to a plane of the output.
  struct Product {
    std::vector<Tap> taps;
    std::vector<int> window;  // the taps' places in the window
    Plane to;
    std::vector<std::int32_t> pixels;  // of the output, for each position of an image; -1: none
  };

  Product make_product(const Plane& to, const Image& output) const;
  /// Images from `first` on into positions, plane after plane, with zeros around.
  void pack(const Bf16* images, const Image& shape, const std::vector<Plane>& planes, std::int64_t first,
            std::int64_t count, Bf16* to, std::int64_t plane_size) const;
  void pack_weights(const Product& product, const float* weight, bool over_k, Bf16* to, Range blocks) const;
  void multiply(const Product& product, const Bf16* packed, std::int64_t plane_size, std::int64_t in_channels,
                const Bf16* weights, Bf16* to, const Image& output, std::int64_t images) const;
  void run(const void* from, const Image& input, const std::vector<Plane>& planes, const std::vector<Product>& products,
           const float* weight, bool over_k, void* to, const Image& output, void* workspace) const;
  std::size_t run_bytes(const Image& input, std::size_t n_planes) const;

  std::int64_t images_at_once(std::int64_t bytes_an_image) const {
    const std::int64_t each = (images_ + parts_ - 1) / parts_;
    return std::clamp<std::int64_t>(kPackedBytes / bytes_an_image, 1, each);
  }

  Conv2dDescription description_;
  std::int64_t images_;
  Image x_, y_;
  Positions positions_;
  int n_taps_, parts_;
  std::vector<Plane> x_planes_, y_planes_{Plane{}};
  std::vector<Product> forward_, data_;
  std::shared_ptr<const OnednnLayout> layout_;
  WorkspaceBytes bytes_;
  struct {
    std::size_t packed_x = 0, packed_dy = 0, rows = 0, columns = 0;
  } weights_at_;
};

AmxConvolution::AmxConvolution(const Conv2dDescription& d, const CpuContext& context)
    : description_(d),
      images_(d.x[0]),
      x_{d.x[1], d.x[2], d.x[3]},
      y_{d.y()[1], d.y()[2], d.out_channels},
      positions_{y_.height, y_.width, (d.padding + d.stride - 1) / d.stride},
      n_taps_(d.window * d.window),
      parts_(static_cast<int>(std::min<std::int64_t>(std::max(1, context.threads), images_))) {
  const memory::dims dims{d.out_channels, d.x[3], d.window, d.window};
  layout_ = as_onednn_layout(d.weight_layout, dims);
  if (!layout_)
    layout_ =
        std::make_shared<OnednnLayout>(memory::desc(dims, memory::data_type::f32, memory::format_tag::oihw),
                                       memory::desc(dims, memory::data_type::f32, memory::format_tag::OIhw16i16o));
  for (std::int64_t row = 0; row < d.stride; ++row)
    for (std::int64_t column = 0; column < d.stride; ++column) x_planes_.push_back({row, column, d.stride});

  // A tap t pixels from the output's pixel times the stride lies on plane t mod stride, floor(t / stride) positions on.
  Product forward = make_product({}, y_);
  for (const Plane& plane : x_planes_) data_.push_back(make_product(plane, x_));
  for (int tap = 0; tap < n_taps_; ++tap) {
    const std::int64_t row = tap / d.window - d.padding, column = tap % d.window - d.padding;
    const std::int64_t rows = floor_divide(row, d.stride), columns = floor_divide(column, d.stride);
    const std::int64_t plane = (row - rows * d.stride) * d.stride + column - columns * d.stride;
    const std::int64_t distance = rows * positions_.pitch() + columns;
    forward.taps.push_back({plane, distance});
    forward.window.push_back(tap);
    data_[static_cast<std::size_t>(plane)].taps.push_back({0, -distance});
    data_[static_cast<std::size_t>(plane)].window.push_back(tap);
  }
  forward_.push_back(std::move(forward));

  bytes_.forward = run_bytes(x_, x_planes_.size());
  if (d.inference) return;
  if (d.input_gradient) bytes_.data_gradient = run_bytes(y_, 1);
  const std::int64_t channels = static_cast<std::int64_t>(x_planes_.size()) * x_.channels + y_.channels;
  const std::int64_t at_once = images_at_once(positions_.image() * channels * 2);
  const auto total = static_cast<std::size_t>(positions_.total(at_once));
  const std::size_t x_bytes = x_planes_.size() * total * static_cast<std::size_t>(x_.channels) * sizeof(Bf16);
  const std::size_t dy_bytes = total * static_cast<std::size_t>(y_.channels) * sizeof(Bf16);
  WorkspacePlan workspace;
  weights_at_.packed_x = workspace.take(x_bytes);
  weights_at_.packed_dy = workspace.take(dy_bytes);
  // Rows an odd number of cache lines long lie in different sets of the first-level cache.
  weights_at_.rows = workspace.take(x_bytes + x_planes_.size() * static_cast<std::size_t>(x_.channels) * 256);
  weights_at_.columns = workspace.take(dy_bytes);
  bytes_.weight_gradient = workspace.size_bytes();
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

void AmxConvolution::pack(const Bf16* images, const Image& shape, const std::vector<Plane>& planes, std::int64_t first,
                          std::int64_t count, Bf16* to, std::int64_t plane_size) const {
  const std::int64_t channels = shape.channels, pitch = positions_.pitch() * channels;
  const auto clear = [](Bf16* begin, const Bf16* end) {
    std::memset(static_cast<void*>(begin), 0, static_cast<std::size_t>(end - begin) * sizeof(Bf16));
  };
  for (const Plane& plane : planes) {
    Bf16* out = to;
    Bf16* const end = to + plane_size;
    clear(out, out + positions_.begin() * channels);
    out += positions_.begin() * channels;
    for (std::int64_t n = first; n < first + count; ++n) {
      const Bf16* image = images + n * shape.n_elements();
      for (std::int64_t h = 0; h < positions_.height; ++h) {
        const std::int64_t row = plane.row + h * plane.stride;
        Bf16* pixel = out + h * pitch;
        if (row < shape.height) {
          const Bf16* from = image + (row * shape.width + plane.column) * channels;
          const std::int64_t columns = (shape.width - plane.column + plane.stride - 1) / plane.stride;
          const std::int64_t step = plane.stride == 1 ? columns : 1;
          for (std::int64_t w = 0; w < columns; w += step, pixel += step * channels, from += plane.stride * channels)
            std::memcpy(static_cast<void*>(pixel), from, static_cast<std::size_t>(step * channels) * sizeof(Bf16));
        }
        clear(pixel, out + (h + 1) * pitch);
      }
      out += positions_.height * pitch;
      clear(out, out + positions_.border * pitch);
      out += positions_.border * pitch;
    }
    clear(out, end);
    to = end;
  }
}

/// Blocks of 32 output channels of the product, each (taps, input channels / 32, two tiles).
void AmxConvolution::pack_weights(const Product& product, const float* weight, bool over_k, Bf16* to,
                                  Range blocks) const {
  const std::int64_t c_blocks = x_.channels / 16;
  const auto block = [&](std::int64_t k, std::int64_t c, int tap) {
    return weight + ((k * c_blocks + c) * n_taps_ + tap) * 256;
  };
  const std::int64_t chunks = (over_k ? y_.channels : x_.channels) / kBlock;
  to += blocks.begin * static_cast<std::int64_t>(product.window.size()) * chunks * 2 * amx::kTile;
  for (std::int64_t out = blocks.begin; out < blocks.end; ++out)
    for (const int tap : product.window)
      for (std::int64_t chunk = 0; chunk < chunks; ++chunk)
        for (int half = 0; half < 2; ++half, to += amx::kTile) {
          if (over_k)
            amx::weights_over_k(block(2 * chunk, 2 * out + half, tap), block(2 * chunk + 1, 2 * out + half, tap), to);
          else
            amx::weights_over_c(block(2 * out + half, 2 * chunk, tap), block(2 * out + half, 2 * chunk + 1, tap), to);
        }
}

/// The output's plane of `images` packed ones.
void AmxConvolution::multiply(const Product& product, const Bf16* packed, std::int64_t plane_size,
                              std::int64_t in_channels, const Bf16* weights, Bf16* to, const Image& output,
                              std::int64_t images) const {
  std::int64_t distances[49];
  for (std::size_t t = 0; t < product.taps.size(); ++t)
    distances[t] = (product.taps[t].plane * plane_size + product.taps[t].distance * in_channels) *
                   static_cast<std::int64_t>(sizeof(Bf16));
  const int n_taps = static_cast<int>(product.taps.size());
  const std::int64_t chunks = in_channels / kBlock, image = positions_.image(), n_positions = images * image;
  const Bf16* const first = packed + positions_.begin() * in_channels;
  alignas(64) float sums[kBlock * kBlock];
  for (std::int64_t channel = 0; channel < output.channels; channel += kBlock) {
    std::int64_t n = 0, pixel = 0;  // of the position
    for (std::int64_t position = 0; position < n_positions; position += kBlock) {
      amx::row_block(first + position * in_channels, in_channels * static_cast<std::int64_t>(sizeof(Bf16)), distances,
                     n_taps, chunks, weights, sums);
      const std::int64_t rows = std::min(kBlock, n_positions - position);
      for (std::int64_t row = 0; row < rows; ++row) {
        const std::int32_t at = product.pixels[static_cast<std::size_t>(pixel)];
        if (at >= 0)
          amx::store_bf16(to + n * output.n_elements() + at * output.channels + channel, sums + row * kBlock);
        if (++pixel == image) {
          pixel = 0;
          ++n;
        }
      }
    }
    weights += n_taps * chunks * 2 * amx::kTile;
  }
}

std::size_t AmxConvolution::run_bytes(const Image& input, std::size_t n_planes) const {
  const std::int64_t an_image = static_cast<std::int64_t>(n_planes) * positions_.image() * input.channels * 2;
  const std::int64_t total = positions_.total(images_at_once(an_image));
  WorkspacePlan workspace;
  workspace.take(static_cast<std::size_t>(n_taps_ * x_.channels * y_.channels) * sizeof(Bf16));
  workspace.take(static_cast<std::size_t>(parts_) * n_planes * static_cast<std::size_t>(total * input.channels) *
                 sizeof(Bf16));
  return workspace.size_bytes();
}

/// Images are divided among threads, which pack some at a time.
void AmxConvolution::run(const void* from, const Image& input, const std::vector<Plane>& planes,
                         const std::vector<Product>& products, const float* weight, bool over_k, void* to,
                         const Image& output, void* workspace) const {
  Bf16* const weights = static_cast<Bf16*>(workspace);
  Bf16* const packed = weights + n_taps_ * x_.channels * y_.channels;
  const std::int64_t out_blocks = output.channels / kBlock;
  const auto weights_of = [&](std::size_t product) {
    std::int64_t taps = 0;
    for (std::size_t i = 0; i < product; ++i) taps += static_cast<std::int64_t>(products[i].taps.size());
    return weights + taps * x_.channels * y_.channels;
  };
  run_parts(parts_, [&](int part) {
    for (std::size_t i = 0; i < products.size(); ++i)
      pack_weights(products[i], weight, over_k, weights_of(i), part_of(out_blocks, part, parts_));
  });
  const auto n_planes = static_cast<std::int64_t>(planes.size());
  const std::int64_t at_once = images_at_once(n_planes * positions_.image() * input.channels * 2);
  const std::int64_t plane_size = positions_.total(at_once) * input.channels;
  run_parts(parts_, [&](int part) {
    const amx::Tiles tiles;
    Bf16* const mine = packed + part * n_planes * plane_size;
    const Range images = part_of(images_, part, parts_);
    for (std::int64_t first = images.begin; first < images.end; first += at_once) {
      const std::int64_t count = std::min(at_once, images.end - first);
      pack(static_cast<const Bf16*>(from), input, planes, first, count, mine, plane_size);
      amx::memory_fence();
      for (std::size_t i = 0; i < products.size(); ++i)
        multiply(products[i], mine, plane_size, input.channels, weights_of(i),
                 static_cast<Bf16*>(to) + first * output.n_elements(), output, count);
    }
  });
}

void AmxConvolution::forward(const void* x, const float* weight, void* y, void* workspace) {
  run(x, x_, x_planes_, forward_, weight, false, y, y_, workspace);
}

void AmxConvolution::data_gradient(const void* dy, const float* weight, void* dx, void* workspace) {
  run(dy, y_, y_planes_, data_, weight, true, dx, x_, workspace);
}

void AmxConvolution::weight_gradient(const void* x, const void* dy, float* dweight, bool accumulate, void* workspace) {
  Bf16* const packed_x = at<Bf16>(workspace, weights_at_.packed_x);
  Bf16* const packed_dy = at<Bf16>(workspace, weights_at_.packed_dy);
  Bf16* const rows = at<Bf16>(workspace, weights_at_.rows);
  Bf16* const columns = at<Bf16>(workspace, weights_at_.columns);
  const auto n_planes = static_cast<std::int64_t>(x_planes_.size());
  const std::int64_t at_once = images_at_once(positions_.image() * (n_planes * x_.channels + y_.channels) * 2);
  const std::int64_t c_blocks = x_.channels / 16, k_blocks = y_.channels / 16;
  const std::int64_t total = positions_.total(at_once), begin = positions_.begin();
  const std::int64_t row_length = (total + kBlock - 1) / kBlock * kBlock + (total / kBlock % 2 == 0 ? kBlock : 0);
  for (std::int64_t first = 0; first < images_; first += at_once) {
    const std::int64_t count = std::min(at_once, images_ - first), blocks = positions_.blocks(count);
    pack(static_cast<const Bf16*>(x), x_, x_planes_, first, count, packed_x, total * x_.channels);
    pack(static_cast<const Bf16*>(dy), y_, y_planes_, first, count, packed_dy, total * y_.channels);
    run_parts(parts_, [&](int part) {
      for (std::int64_t plane = 0; plane < n_planes; ++plane) {
        const Bf16* from = packed_x + plane * total * x_.channels;
        Bf16* to = rows + plane * x_.channels * row_length;
        const Range range = part_of(total / kBlock + 1, part, parts_);
        for (std::int64_t block = range.begin; block < range.end; ++block) {
          const std::int64_t position = std::min(block * kBlock, total - kBlock);  // the last may overlap
          for (std::int64_t c = 0; c < c_blocks; ++c)
            amx::transpose_positions(from + position * x_.channels + c * 16, x_.channels,
                                     to + c * 16 * row_length + position, row_length);
        }
      }
      const Range range = part_of(blocks, part, parts_);
      for (std::int64_t block = range.begin; block < range.end; ++block)
        for (std::int64_t k = 0; k < k_blocks; ++k)
          amx::pairs_of_positions(packed_dy + (begin + block * kBlock) * y_.channels + k * 16, y_.channels,
                                  columns + (k * blocks + block) * amx::kTile);
    });
    const std::int64_t units = c_blocks / 2 * (k_blocks / 2);
    run_parts(parts_, [&](int part) {
      const amx::Tiles tiles;
      const Range range = part_of(units, part, parts_);
      for (std::int64_t unit = range.begin; unit < range.end; ++unit) {
        const std::int64_t c = unit % (c_blocks / 2) * 2, k = unit / (c_blocks / 2) * 2;
        for (int tap = 0; tap < n_taps_; ++tap) {
          const Tap& t = forward_[0].taps[static_cast<std::size_t>(tap)];
          const Bf16* x_row = rows + (t.plane * x_.channels + c * 16) * row_length + begin + t.distance;
          const Bf16* const row_pair[2] = {x_row, x_row + 16 * row_length};
          const Bf16* const column_pair[2] = {columns + k * blocks * amx::kTile,
                                              columns + (k + 1) * blocks * amx::kTile};
          const auto block = [&](std::int64_t ck, std::int64_t kk) {
            return dweight + (((k + kk) * c_blocks + c + ck) * n_taps_ + tap) * 256;
          };
          float* const sums[4] = {block(0, 0), block(0, 1), block(1, 0), block(1, 1)};
          amx::weight_block(row_pair, row_length * static_cast<std::int64_t>(sizeof(Bf16)), column_pair, blocks, sums,
                            accumulate || first > 0);
        }
      }
    });
  }
}

}  // namespace

bool amx_convolution_fits(const Conv2dDescription& d) {
  return d.dtype == DType::bf16 && d.x_layout == Layout::nhwc && d.y_layout == Layout::nhwc && d.x[3] % kBlock == 0 &&
         d.out_channels % kBlock == 0 && d.window % 2 == 1 && d.window <= 7 && d.padding == d.window / 2 &&
         (d.stride == 1 || d.stride == 2) && amx_is_usable();
}

std::unique_ptr<BareConvolution> make_amx_convolution(const Conv2dDescription& d, const CpuContext& context) {
  return std::make_unique<AmxConvolution>(d, context);
}

}  // namespace lockstep::cpu

// 3x3 convolutions with a stride of 1 in fewer multiplications: Winograd's minimal filtering F(4x4, 3x3) (Lavin and
// Gray, "Fast Algorithms for Convolutional Neural Networks", CVPR 2016). Images are cut into tiles of 4x4 outputs, each
// of which needs 6x6 inputs. With constant matrices A, B and G:
//
//   forward          y  = A^T [sum over c of (G w G^T) * (B^T x B)] A       for each tile; * is elementwise
//   data gradient    the same of dy, with the window turned by 180 degrees and its two channels exchanged
//   weight gradient  dw = G^T [sum over tiles of (B^T x B) * (A dy A^T)] G
//
// The sums in brackets are 36 products of matrices, which take 36 multiplications where the convolution has 144. The
// price is rounding: against double precision, the error of random tensors with 64 channels is two to three times
// that of adding the products directly (test/kernels/conv2d_winograd_test.cpp). It is therefore a candidate for timing
// only, which `reproducible` rules out.
//   Tensors of bf16 are widened as they are transformed, and everything is computed in fp32.
#include <algorithm>

#include "kernels/cpu/base/parallel.h"
#include "kernels/cpu/base/product.h"
#include "kernels/cpu/base/simd.h"
#include "kernels/cpu/base/widen.h"
#include "lockstep/workspace.h"

namespace lockstep::cpu {

constexpr std::int64_t kTileSize = 4;  // m: outputs per row of a tile
constexpr int kPoints = 36;            // points of a transformed tile, (m + 2)^2

/// Images in either layout, of fp32 or bf16. Strides are in elements; a block has 16 channels.
struct WinogradImages {
  void* first = nullptr;
  std::int64_t n_blocks = 0;
  std::int64_t image = 0, block = 0, row = 0, pixel = 0;

  template <typename E>
  E* data() const {
    return static_cast<E*>(first);
  }
};

/// The tiles of all images, image by image and row by row.
struct WinogradTiles {
  std::int64_t height = 0, width = 0;  // of an image, in pixels
  std::int64_t rows = 0, columns = 0;  // of an image, in tiles
  std::int64_t at_once = 0;            // the number of transformed tiles that are in memory at a time
};

/// The image and the first output of a tile.
struct WinogradTile {
  std::int64_t image, row, column;
};
inline WinogradTile tile_at(const WinogradTiles& tiles, std::int64_t number) {
  const std::int64_t in_image = number % (tiles.rows * tiles.columns);
  return {number / (tiles.rows * tiles.columns), in_image / tiles.columns * kTileSize,
          in_image % tiles.columns * kTileSize};
}

/// The number of elements from one point of the transform to the next, for vectors in `n_blocks` blocks. All points of
/// a tile are written together; the additional vector keeps them out of the same cache set.
constexpr std::int64_t winograd_point_stride(std::int64_t n_blocks, std::int64_t vectors_per_block) {
  return n_blocks * vectors_per_block * 16 + 16;
}

/// A forward pass or a data gradient.
struct WinogradProduct {
  WinogradImages from, to;
  const float* weights = nullptr;  // (K/16, C/16, 3, 3, 16 c, 16 k)
  bool is_turned = false;          // for the data gradient: the weights are rotated and transposed
};

struct WinogradWeightGradient {
  WinogradImages x, dy;
  float *pixels = nullptr, *gradients = nullptr;  // transformed tiles (points, blocks, tiles at once, 16)
  float* sums = nullptr;                          // (points, K/16, C, 16)
  float* dweight = nullptr;                       // (K/16, C/16, 3, 3, 16 c, 16 k)
};

}  // namespace lockstep::cpu

#define LOCKSTEP_KERNELS "kernels/cpu/conv2d_winograd_kernels.h"
#include "kernels/cpu/base/each_isa.h"
#include "kernels/cpu/conv2d_bare.h"

namespace lockstep::cpu {
namespace {

// Large enough that the transform of the weights, which is repeated for each group of tiles, takes only a twentieth of
// the time of the products. Small enough that the transformed pixels of 64 channels stay in an L2 cache of 1 MiB.
constexpr std::int64_t kTilesAtOnce = 96;
constexpr std::int64_t kTileMultiple = 12;  // the most tiles that a kernel multiplies together

WinogradImages images_of(const void* data, const Shape& s, Layout layout) {
  WinogradImages images{.first = const_cast<void*>(data), .n_blocks = s[3] / 16};
  const bool is_blocked = layout == Layout::nchw16c;
  images.pixel = is_blocked ? 16 : s[3];
  images.row = s[2] * images.pixel;
  images.block = is_blocked ? s[1] * images.row : 16;
  images.image = s[1] * s[2] * s[3];
  return images;
}

BlockedLayout blocks_of(const Conv2dDescription& d) {
  return {{d.out_channels, d.x[3], d.kernel_size, d.kernel_size}, "ABcd16b16a"};
}

class WinogradConvolution final : public BareConvolution {
 public:
  WinogradConvolution(const Conv2dDescription& d, Direction direction, const CpuContext& context);

  std::shared_ptr<const BlockedLayout> weight_layout() const override { return layout_; }
  std::size_t workspace_bytes() const override { return bytes_; }
  std::string describe() const override { return "own kernel, Winograd F(4x4, 3x3)"; }

  void run(const void* from, const void* weight, void* to, void* workspace) override;
  void weight_gradient(const void* x, const void* dy, float* dweight, bool accumulate, void* workspace) override;

 private:
  std::int64_t n_tiles() const { return d_.x[0] * tiles_.rows * tiles_.columns; }
  WinogradImages x_images(const void* x) const { return images_of(x, d_.x, d_.x_layout); }
  WinogradImages y_images(const void* y) const { return images_of(y, d_.y(), d_.y_layout); }

  Conv2dDescription d_;
  Direction direction_;
  WinogradTiles tiles_;
  int parts_;
  std::shared_ptr<const BlockedLayout> layout_;
  std::unique_ptr<Reorder> reorder_;  // of the weights or their gradient; null if the layouts agree
  std::size_t bytes_ = 0, part_bytes_ = 0;
  struct {
    std::size_t weights = 0, outer_weights = 0, scratchpad = 0, parts = 0, pixels = 0, gradients = 0, sums = 0;
  } at_;
};

WinogradConvolution::WinogradConvolution(const Conv2dDescription& d, Direction direction, const CpuContext& context)
    : d_(d),
      direction_(direction),
      tiles_{.height = d.x[1],
             .width = d.x[2],
             .rows = (d.x[1] + kTileSize - 1) / kTileSize,
             .columns = (d.x[2] + kTileSize - 1) / kTileSize,
             .at_once = kTilesAtOnce},
      parts_(std::max(1, context.threads)) {
  const BlockedLayout inner = blocks_of(d);
  layout_ = as_blocked_layout(d.weight_layout, inner.sizes());
  if (!layout_) layout_ = std::make_shared<BlockedLayout>(inner);
  const auto bytes = [](std::int64_t n_blocks, std::int64_t vectors_per_block) {
    return static_cast<std::size_t>(kPoints * winograd_point_stride(n_blocks, vectors_per_block)) * sizeof(float);
  };
  const std::int64_t c = d.x[3], k = d.out_channels;
  const std::size_t weight_bytes = inner.n_elements() * sizeof(float);
  WorkspacePlan workspace;
  if (direction == Direction::weight_gradient) {
    reorder_ = make_reorder(inner, DType::fp32, *layout_, DType::fp32, context);
    at_.pixels = workspace.take(bytes(c / 16, tiles_.at_once));
    at_.gradients = workspace.take(bytes(k / 16, tiles_.at_once));
    at_.sums = workspace.take(bytes(k / 16, c));
  } else {
    reorder_ = make_reorder(*layout_, d.dtype, inner, DType::fp32, context);
    // A small batch is divided among all threads.
    const std::int64_t share = (n_tiles() + parts_ - 1) / parts_;
    tiles_.at_once = std::min(kTilesAtOnce, (share + kTileMultiple - 1) / kTileMultiple * kTileMultiple);
    const std::int64_t n_in = direction == Direction::forward ? c : k;
    part_bytes_ = bytes(n_in / 16, tiles_.at_once) + bytes(2, n_in) + bytes(2, tiles_.at_once);
    at_.parts = workspace.take(part_bytes_ * static_cast<std::size_t>(parts_));
  }
  if (reorder_) {
    at_.weights = workspace.take(weight_bytes);
    at_.outer_weights = workspace.take(layout_->n_elements() * sizeof(float));
    at_.scratchpad = workspace.take(reorder_->workspace_bytes());
  }
  bytes_ = workspace.size_bytes();
}

void WinogradConvolution::run(const void* from, const void* weight, void* to, void* workspace) {
  const bool is_turned = direction_ == Direction::data_gradient;
  WinogradProduct product{.from = is_turned ? y_images(from) : x_images(from),
                          .to = is_turned ? x_images(to) : y_images(to),
                          .weights = static_cast<const float*>(weight),
                          .is_turned = is_turned};
  if (reorder_) {
    reorder_->execute(weight, at<float>(workspace, at_.weights), at(workspace, at_.scratchpad));
    product.weights = at<float>(workspace, at_.weights);
  }
  run_parts(parts_, [&](int part) {
    float* const memory = at<float>(workspace, at_.parts + static_cast<std::size_t>(part) * part_bytes_);
    const Range range = part_of(n_tiles(), part, parts_);
    with_elements(d_.dtype, [&]<typename E>(E) {
      LOCKSTEP_DISPATCH(winograd_product<E>)(product, tiles_, range, memory);
    });
  });
}

void WinogradConvolution::weight_gradient(const void* x, const void* dy, float* dweight, bool accumulate,
                                          void* workspace) {
  WinogradWeightGradient gradient{.x = x_images(x),
                                  .dy = y_images(dy),
                                  .pixels = at<float>(workspace, at_.pixels),
                                  .gradients = at<float>(workspace, at_.gradients),
                                  .sums = at<float>(workspace, at_.sums),
                                  .dweight = reorder_ ? at<float>(workspace, at_.weights) : dweight};
  const std::int64_t pairs = d_.out_channels / 32;
  for (std::int64_t first = 0; first < n_tiles(); first += tiles_.at_once) {
    const std::int64_t n = std::min(tiles_.at_once, n_tiles() - first);
    run_parts(parts_, [&](int part) {
      with_elements(d_.dtype, [&]<typename E>(E) {
        LOCKSTEP_DISPATCH(winograd_operands<E>)(gradient, tiles_, first, part_of(n, part, parts_));
      });
    });
    run_ranges(parts_, pairs, [&](Range range) {
      LOCKSTEP_DISPATCH(winograd_sums)(gradient, tiles_, n, first == 0, range);
    });
  }
  run_ranges(parts_, pairs, [&](Range range) {
    LOCKSTEP_DISPATCH(winograd_gradients)(gradient, accumulate && !reorder_, range);
  });
  if (!reorder_) return;
  float* const outer = accumulate ? at<float>(workspace, at_.outer_weights) : dweight;
  reorder_->execute(gradient.dweight, outer, at(workspace, at_.scratchpad));
  if (accumulate) add_into(DType::fp32, dweight, outer, layout_->n_elements(), {.threads = parts_});
}

}  // namespace

bool winograd_fits(const Conv2dDescription& d, Direction) {
  return (d.dtype == DType::fp32 || d.dtype == DType::bf16) && d.kernel_size == 3 && d.stride == 1 && d.padding == 1 &&
         d.x[3] % 32 == 0 && d.out_channels % 32 == 0;
}

std::unique_ptr<BareConvolution> make_winograd_convolution(const Conv2dDescription& d, Direction direction,
                                                           const CpuContext& context) {
  return std::make_unique<WinogradConvolution>(d, direction, context);
}

}  // namespace lockstep::cpu

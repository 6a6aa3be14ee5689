// The weight gradient of a convolution of small images, where oneDNN's kernel reaches half of the multiply rate: it
// loads and stores its sums once per row of the image, which is 4 or 8 pixels long here.
#include <algorithm>
#include <array>
#include <cstring>

#include "kernels/cpu/base/parallel.h"
#include "kernels/cpu/base/simd.h"
#include "lockstep/workspace.h"

namespace lockstep::cpu {

/// The strides are in elements.
struct WeightGradientTask {
  static constexpr int kRows = 8;  // input channels whose sums are in registers together
  static constexpr int kMaxTaps = 49;

  struct Tap {
    Range h, w;                 // output pixels for which the tap is inside the image
    std::int64_t x_offset = 0;  // offset of its input pixel for output pixel (0, 0)
  };

  const float* x = nullptr;   // gathered: [C/16][image][row][column][16]
  const float* dy = nullptr;  // gathered: [K/16][image][row][column][16]
  float* dweight = nullptr;
  bool accumulate = false;
  std::int64_t images = 0, images_at_once = 0, c_blocks = 0, k_blocks = 0;
  std::int64_t x_image = 0, x_block = 0, x_row = 0, x_pixel = 0;  // x_row, x_pixel: for one step in the output
  std::int64_t dy_image = 0, dy_block = 0, dy_row = 0;
  std::int64_t dweight_block = 0;  // from one block of output channels to the next
  int n_taps = 0;
  std::array<Tap, kMaxTaps> taps{};
};

}  // namespace lockstep::cpu

#define LOCKSTEP_KERNELS "kernels/cpu/conv2d_weights_kernels.h"
#include "kernels/cpu/base/each_isa.h"
#include "kernels/cpu/conv2d_bare.h"

namespace lockstep::cpu {
namespace {

constexpr std::int64_t kMaxPixels = 64;  // maximum size of an output image

/// Copies from [image][block][pixels][16] to [block][image][pixels][16]. With these sizes, the same block of different
/// images in nchw16c is stored at multiples of 4 KiB. A few images would then use up all ways of their sets in the L1
/// cache: 8 images of 4x4x512 ran at three quarters of the speed.
void gather_blocks(const float* from, float* to, std::int64_t images, std::int64_t blocks, std::int64_t size,
                   Range range) {
  for (std::int64_t block = range.begin; block < range.end; ++block)
    for (std::int64_t n = 0; n < images; ++n)
      std::memcpy(to + (block * images + n) * size, from + (n * blocks + block) * size,
                  static_cast<std::size_t>(size) * sizeof(float));
}

/// Output positions h for which h * stride + offset is in [0, size).
Range on_image(std::int64_t outputs, std::int64_t stride, std::int64_t offset, std::int64_t size) {
  const std::int64_t begin = offset >= 0 ? 0 : (-offset + stride - 1) / stride;
  const std::int64_t end = size - offset <= 0 ? 0 : (size - offset - 1) / stride + 1;
  return {std::min(begin, outputs), std::clamp(end, std::min(begin, outputs), outputs)};
}

struct WorkspaceOf {
  explicit WorkspaceOf(const Conv2dDescription& d)
      : x(plan.take(static_cast<std::size_t>(d.x.n_elements()) * sizeof(float))),
        dy(plan.take(static_cast<std::size_t>(d.y().n_elements()) * sizeof(float))) {}
  WorkspacePlan plan;
  std::size_t x, dy;  // offsets
};

/// The layout of dweight, (K/16, C/16, R, S, 16 c, 16 k).
BlockedLayout blocks_of(const Conv2dDescription& d) {
  return {{d.out_channels, d.x[3], d.kernel_size, d.kernel_size}, "ABcd16b16a"};
}

class WeightGradient final : public BareConvolution {
 public:
  WeightGradient(const Conv2dDescription& d, const CpuContext& context)
      : d_(d), context_(context), layout_(as_blocked_layout(d.weight_layout, blocks_of(d).sizes())) {}

  std::shared_ptr<const BlockedLayout> weight_layout() const override { return layout_; }
  std::size_t workspace_bytes() const override { return WorkspaceOf(d_).plan.size_bytes(); }
  std::string describe() const override { return "own kernel for small images"; }
  void run(const void*, const void*, void*, void*) override {
    fail(ErrorCode::internal, "a convolution was called that was planned for its weight gradient");
  }
  void weight_gradient(const void* x, const void* dy, float* dweight, bool accumulate, void* workspace) override;

 private:
  Conv2dDescription d_;
  CpuContext context_;
  std::shared_ptr<const BlockedLayout> layout_;
};

void WeightGradient::weight_gradient(const void* x, const void* dy, float* dweight, bool accumulate, void* workspace) {
  const Conv2dDescription& d = d_;
  const Shape y = d.y();
  const WorkspaceOf offsets(d);
  float* const gathered_x = at<float>(workspace, offsets.x);
  float* const gathered_dy = at<float>(workspace, offsets.dy);
  WeightGradientTask task;
  task.x = gathered_x;
  task.dy = gathered_dy;
  task.dweight = dweight;
  task.accumulate = accumulate;
  task.images = d.x[0];
  task.c_blocks = d.x[3] / 16;
  task.k_blocks = d.out_channels / 16;
  task.x_image = d.x[1] * d.x[2] * 16;
  task.x_block = task.images * task.x_image;
  task.x_row = d.stride * d.x[2] * 16;
  task.x_pixel = d.stride * std::int64_t{16};
  task.dy_row = y[2] * 16;
  task.dy_image = y[1] * task.dy_row;
  task.dy_block = task.images * task.dy_image;
  task.n_taps = d.kernel_size * d.kernel_size;
  task.dweight_block = task.c_blocks * task.n_taps * 256;
  // For this many images, one block of x and two blocks of dy stay in the L1 cache while all taps use them.
  constexpr std::int64_t kCacheBytes = 24 * 1024;
  const std::int64_t image_bytes = (task.x_image + 2 * task.dy_image) * std::int64_t{sizeof(float)};
  task.images_at_once = std::max<std::int64_t>(1, kCacheBytes / image_bytes);
  for (int tap = 0; tap < task.n_taps; ++tap) {
    const std::int64_t row = tap / d.kernel_size - d.padding, column = tap % d.kernel_size - d.padding;
    task.taps[static_cast<std::size_t>(tap)] = {on_image(y[1], d.stride, row, d.x[1]),
                                                on_image(y[2], d.stride, column, d.x[2]), (row * d.x[2] + column) * 16};
  }
  const std::int64_t units = (task.k_blocks + 1) / 2 * task.c_blocks;
  const int parts = static_cast<int>(std::min<std::int64_t>(std::max(1, context_.threads), units));
  run_parts(parts, [&](int part) {
    gather_blocks(static_cast<const float*>(x), gathered_x, task.images, task.c_blocks, task.x_image,
                  part_of(task.c_blocks, part, parts));
    gather_blocks(static_cast<const float*>(dy), gathered_dy, task.images, task.k_blocks, task.dy_image,
                  part_of(task.k_blocks, part, parts));
  });
  run_ranges(parts, units, [&](Range range) { LOCKSTEP_DISPATCH(weight_gradient)(task, range); });
}

}  // namespace

bool weight_gradient_fits(const Conv2dDescription& d, Direction direction) {
  if (direction != Direction::weight_gradient || d.dtype != DType::fp32 || d.x_layout != Layout::nchw16c ||
      d.y_layout != Layout::nchw16c || d.kernel_size * d.kernel_size > WeightGradientTask::kMaxTaps || !d.weight_layout)
    return false;
  const BlockedLayout blocks = blocks_of(d);
  return *as_blocked_layout(d.weight_layout, blocks.sizes()) == blocks;
}

std::shared_ptr<const BlockedLayout> weight_gradient_layout(const Conv2dDescription& d) {
  return std::make_shared<BlockedLayout>(blocks_of(d));
}

bool weight_gradient_pays(const Conv2dDescription& d) { return d.kernel_size > 1 && d.y()[1] * d.y()[2] <= kMaxPixels; }

std::unique_ptr<BareConvolution> make_weight_gradient(const Conv2dDescription& d, Direction,
                                                      const CpuContext& context) {
  return std::make_unique<WeightGradient>(d, context);
}

}  // namespace lockstep::cpu

// A bare convolution of bf16 tensors that multiplies in fp32, for processors whose instructions for bf16 are missing or
// slower: some images at a time are widened into the workspace, in the layout of an fp32 algorithm, which convolves
// them while they are in the cache. In memory, x, y and the weights stay bf16.
//
//   forward, data gradient   the results of the fp32 algorithm, rounded to bf16
//   weight gradient          the sum over images in fp32, to which the fp32 algorithm adds group after group
//
// Weights are widened once per call. The workspace holds one group of images and two copies of the weights in fp32.
#include <algorithm>

#include "kernels/cpu/base/parallel.h"
#include "kernels/cpu/base/product.h"
#include "kernels/cpu/base/widen.h"
#include "kernels/cpu/conv2d_bare.h"
#include "lockstep/workspace.h"

namespace lockstep::cpu {
namespace {

// The size per thread of a group of images in fp32, x and y together: the capacity of the L2 cache.
constexpr std::int64_t kGroupBytes = std::int64_t{1} << 20;
// With fewer output pixels, reading and reordering all weights once more does not pay off.
constexpr std::int64_t kLeastPixels = 1024;

/// Groups of equal size, except for the last one.
std::int64_t images_at_once(const Conv2dDescription& d, const CpuContext& context) {
  const std::int64_t threads = std::max(1, context.threads);
  const std::int64_t image_bytes =
      (d.x.n_elements() + d.y().n_elements()) / d.x[0] * static_cast<std::int64_t>(sizeof(float));
  const std::int64_t pixels = d.y()[1] * d.y()[2];
  const std::int64_t wanted = std::max({threads, threads * kGroupBytes / image_bytes, kLeastPixels / pixels});
  const std::int64_t n_groups = (d.x[0] + wanted - 1) / wanted;
  return (d.x[0] + n_groups - 1) / n_groups;
}

Conv2dDescription with_images(Conv2dDescription d, std::int64_t images) {
  d.x = {images, d.x[1], d.x[2], d.x[3]};
  return d;
}

class WidenedConvolution final : public BareConvolution {
 public:
  WidenedConvolution(const Conv2dDescription& d, const Conv2dDescription& fp32, Direction direction,
                     const CpuContext& context, MakeConvolution make);

  std::shared_ptr<const BlockedLayout> weight_layout() const override { return layout_; }
  std::size_t workspace_bytes() const override { return bytes_; }
  std::string describe() const override;

  void run(const void* from, const void* weight, void* to, void* workspace) override;
  void weight_gradient(const void* x, const void* dy, float* dweight, bool accumulate, void* workspace) override;

 private:
  /// A group of images of x or y: its offset in the bf16 tensor, in elements, and its copy in fp32.
  struct Group {
    ImageRows rows;
    std::int64_t offset;
    Layout layout;
    float* fp32;
    void widen_from(const void* images, const CpuContext& context) const {
      widen(rows, static_cast<const Bf16*>(images) + offset, layout, fp32, context);
    }
    void narrow_to(void* images, const CpuContext& context) const {
      narrow(rows, layout, fp32, static_cast<Bf16*>(images) + offset, context);
    }
  };

  void place();
  template <typename Work>  // (convolution, x, y)
  void for_each_group(void* workspace, const Work& work);
  /// The weights in fp32, in the layout of the fp32 algorithm.
  const float* widened_weights(const void* weight, void* workspace);

  Conv2dDescription d_, fp32_;
  Direction direction_;
  CpuContext context_;
  std::int64_t images_;  // per group
  std::unique_ptr<BareConvolution> group_, last_group_;
  std::shared_ptr<const BlockedLayout> layout_, inner_layout_;
  std::unique_ptr<Reorder> reorder_;  // of weights or their gradient; null if the layouts agree
  std::size_t bytes_ = 0;
  struct {
    std::size_t x = 0, y = 0, weights = 0, inner_weights = 0, group = 0, scratchpad = 0;
  } at_;
};

WidenedConvolution::WidenedConvolution(const Conv2dDescription& d, const Conv2dDescription& fp32, Direction direction,
                                       const CpuContext& context, MakeConvolution make)
    : d_(d), fp32_(fp32), direction_(direction), context_(context), images_(images_at_once(fp32, context)) {
  if (!fp32_.weight_layout) fp32_.weight_layout = make(fp32_, Direction::forward, context)->weight_layout();
  group_ = make(with_images(fp32_, images_), direction, context);
  if (const std::int64_t rest = d.x[0] % images_; rest > 0)
    last_group_ = make(with_images(fp32_, rest), direction, context);
  inner_layout_ = group_->weight_layout();
  layout_ = as_blocked_layout(d.weight_layout, inner_layout_->sizes());
  if (!layout_) layout_ = inner_layout_;
  reorder_ = direction == Direction::weight_gradient
                 ? make_reorder(*inner_layout_, DType::fp32, *layout_, DType::fp32, context)
                 : make_reorder(*layout_, DType::fp32, *inner_layout_, DType::fp32, context);
  place();
}

void WidenedConvolution::place() {
  const auto fp32_bytes = [&](const Shape& s) {
    return static_cast<std::size_t>(s.n_elements() / s[0] * images_) * sizeof(float);
  };
  WorkspacePlan workspace;
  at_.x = workspace.take(fp32_bytes(d_.x));
  at_.y = workspace.take(fp32_bytes(d_.y()));
  if (direction_ != Direction::weight_gradient || reorder_)
    at_.weights = workspace.take(layout_->n_elements() * sizeof(float));
  if (reorder_) at_.inner_weights = workspace.take(inner_layout_->n_elements() * sizeof(float));
  at_.group = workspace.take(
      std::max(group_->workspace_bytes(), last_group_ ? last_group_->workspace_bytes() : std::size_t{0}));
  at_.scratchpad = workspace.take(reorder_ ? reorder_->workspace_bytes() : 0);
  bytes_ = workspace.size_bytes();
}

std::string WidenedConvolution::describe() const {
  std::string out = fmt::format("{}, multiplied in fp32, {} images at a time", group_->describe(), images_);
  if (reorder_) out += ", weights reordered once";
  return out;
}

template <typename Work>
void WidenedConvolution::for_each_group(void* workspace, const Work& work) {
  for (std::int64_t first = 0; first < d_.x[0]; first += images_) {
    const std::int64_t n = std::min(images_, d_.x[0] - first);
    const auto group = [&](const Shape& s, Layout layout, std::size_t fp32_at) {
      return Group{{n, s[1] * s[2], s[3]}, first * s[1] * s[2] * s[3], layout, at<float>(workspace, fp32_at)};
    };
    work(n == images_ ? *group_ : *last_group_, group(d_.x, fp32_.x_layout, at_.x),
         group(d_.y(), fp32_.y_layout, at_.y));
  }
}

const float* WidenedConvolution::widened_weights(const void* weight, void* workspace) {
  float* const weights = at<float>(workspace, at_.weights);
  widen(static_cast<const Bf16*>(weight), weights, static_cast<std::int64_t>(layout_->n_elements()), context_);
  if (!reorder_) return weights;
  float* const inner = at<float>(workspace, at_.inner_weights);
  reorder_->execute(weights, inner, at(workspace, at_.scratchpad));
  return inner;
}

void WidenedConvolution::run(const void* from, const void* weight, void* to, void* workspace) {
  const float* const weights = widened_weights(weight, workspace);
  for_each_group(workspace, [&](BareConvolution& convolution, const Group& x, const Group& y) {
    const bool is_forward = direction_ == Direction::forward;
    const Group &in = is_forward ? x : y, &out = is_forward ? y : x;
    in.widen_from(from, context_);
    convolution.run(in.fp32, weights, out.fp32, at(workspace, at_.group));
    out.narrow_to(to, context_);
  });
}

void WidenedConvolution::weight_gradient(const void* x, const void* dy, float* dweight, bool accumulate,
                                         void* workspace) {
  float* const sums = reorder_ ? at<float>(workspace, at_.inner_weights) : dweight;
  bool adds = accumulate && !reorder_;
  for_each_group(workspace, [&](BareConvolution& convolution, const Group& group_x, const Group& group_y) {
    group_x.widen_from(x, context_);
    group_y.widen_from(dy, context_);
    convolution.weight_gradient(group_x.fp32, group_y.fp32, sums, adds, at(workspace, at_.group));
    adds = true;
  });
  if (!reorder_) return;
  float* const outer = accumulate ? at<float>(workspace, at_.weights) : dweight;
  reorder_->execute(sums, outer, at(workspace, at_.scratchpad));  // also writes zeros to the padding
  if (accumulate) add_into(DType::fp32, dweight, outer, layout_->n_elements(), context_);
}

}  // namespace

Conv2dDescription widened(const Conv2dDescription& d, bool needs_nhwc) {
  const bool has_blocks = !needs_nhwc && has_convolutions_in_blocks();
  const auto layout = [&](std::int64_t channels) {
    return has_blocks && channels % kChannelBlock == 0 ? Layout::nchw16c : Layout::nhwc;
  };
  Conv2dDescription fp32 = d;
  fp32.dtype = DType::fp32;
  fp32.x_layout = layout(d.x[3]);
  fp32.y_layout = layout(d.out_channels);
  fp32.weight_layout = nullptr;
  return fp32;
}

std::unique_ptr<BareConvolution> make_widened_convolution(const Conv2dDescription& d, const Conv2dDescription& fp32,
                                                          Direction direction, const CpuContext& context,
                                                          MakeConvolution make) {
  return std::make_unique<WidenedConvolution>(d, fp32, direction, context, make);
}

}  // namespace lockstep::cpu

// Converts uint8 images to normalised ones, cropped and flipped by counter-based draws (lockstep/ops/image_input.h).
// Each value is looked up in a table of 256 per channel, (v / 255 - mean) / stddev computed in fp64 and rounded once.
// Regions are resized by the same loops that resize the images of JPEG files on the host (lockstep/resize_rows.h).
#include <algorithm>
#include <memory>
#include <vector>

#include "kernels/cpu/base/bf16.h"
#include "kernels/cpu/base/parallel.h"
#include "lockstep/ops/image_input.h"
#include "lockstep/resize_rows.h"
#include "lockstep/workspace.h"

namespace lockstep::cpu {
namespace {

/// The weights along one axis. Their memory is reused for the next image.
class AxisWeights {
 public:
  AxisWeights() = default;
  AxisWeights(std::int64_t n_outputs, int max_pixels) {
    const auto n = static_cast<std::size_t>(n_outputs);
    weights_.max_taps = max_resize_taps(max_pixels, static_cast<int>(n_outputs));
    weights_.first.resize(n);
    weights_.count.resize(n);
    weights_.weights.resize(n * static_cast<std::size_t>(weights_.max_taps));
    weights_.split();
  }
  void compute(const ResizedAxis& axis) {
    weights_.max_taps = max_resize_taps(axis.n, weights_.n_outputs());
    for (int i = 0; i < weights_.n_outputs(); ++i) {
      const ResizedOutput output(axis, i);
      const auto [begin, end] = output.taps();
      const auto at = static_cast<std::size_t>(i);
      weights_.first[at] = begin - axis.first;
      weights_.count[at] = std::min(end - begin, weights_.max_taps);
      std::int32_t* row = weights_.weights.data() + std::ptrdiff_t{i} * weights_.max_taps;
      for (int k = 0; k < weights_.count[at]; ++k) row[k] = output.weight(begin + k, kResizeFractionBits);
    }
  }
  ResizeWeights& get() { return weights_; }

 private:
  ResizeWeights weights_;
};

template <typename E>
class CpuImageInput final : public CpuOp<ImageInputDescription> {
 public:
  CpuImageInput(const ImageInputDescription& d, const CpuContext& context)
      : PlannedOp(d, context),
        table_(static_cast<std::size_t>(d.x[3] * 256)),
        parts_(part_count(context, d.x.n_elements() * std::int64_t{sizeof(E)})),
        row_bytes_(resized_row_bytes(static_cast<int>(d.x[2]), static_cast<int>(d.x[3]))) {
    const std::size_t channels = static_cast<std::size_t>(d.x[3]);
    for (std::size_t value = 0; value < 256; ++value)
      for (std::size_t c = 0; c < channels; ++c)
        table_[value * channels + c] = from_float<E>(
            static_cast<float>((static_cast<double>(value) / 255.0 - double{d.mean[c]}) / double{d.stddev[c]}));
    if (!d.regions.exist()) return;
    WorkspacePlan plan;
    for (int part = 0; part < parts_; ++part)
      resizers_.push_back({.along_rows = {d.x[2], d.regions.max_width},
                           .along_columns = {d.x[1], d.regions.max_height},
                           .rows_offset = plan.take(static_cast<std::size_t>(d.regions.max_height) * row_bytes_),
                           .row_offset = plan.take(row_bytes_)});
    workspace_bytes_ = plan.size_bytes();
  }

  OpMemoryRequirements memory_requirements() const override { return {.forward_workspace_bytes = workspace_bytes_}; }

  std::string describe() const override {
    std::string text = "own kernel: normalisation by table";
    if (d_.regions.exist()) text += ", antialiased resizing of regions";
    if (d_.crop_padding > 0) text += ", crop";
    if (d_.flip) text += ", flip";
    return text;
  }

  void run_forward(const Forward& args, const OpMemory& memory, Stream&) override {
    const std::int64_t image = d_.x[1] * d_.x[2] * d_.x[3];
    run_parts(parts_, [&](int part) {
      const Range range = part_of(d_.x[0], part, parts_);
      for (std::int64_t n = range.begin; n < range.end; ++n) {
        const ImagePlacement placement =
            draw_placement(d_.crop_padding, d_.flip, d_.seed, args.sample_ids[n], args.scalars->epoch);
        E* const out = static_cast<E*>(args.y) + n * image;
        if (d_.regions.exist())
          resize_image(args.images + std::int64_t{args.places[n]} * d_.regions.place_bytes, args.regions[n], placement,
                       resizers_[static_cast<std::size_t>(part)], memory.workspace, out);
        else
          copy_image(args.images + n * image, placement, out);
      }
    });
  }

 private:
  /// What each part of the work needs to resize regions. The offsets in the workspace are those of the rows of the
  /// region, resized along rows, and of one row of the resized image.
  struct PartResizer {
    AxisWeights along_rows, along_columns;
    std::size_t rows_offset = 0, row_offset = 0;
  };

  /// Writes one pixel. Bytes outside of the source are zero.
  void put(const std::uint8_t* pixel, E* out) const {
    const std::int64_t channels = d_.x[3];
    for (std::int64_t c = 0; c < channels; ++c)
      out[c] = table_[static_cast<std::size_t>((pixel ? std::int64_t{pixel[c]} : 0) * channels + c)];
  }

  void copy_image(const std::uint8_t* source, const ImagePlacement& placement, E* out) const {
    const std::int64_t height = d_.x[1], row_values = d_.x[2] * d_.x[3];
    for (std::int64_t h = 0; h < height; ++h, out += row_values) {
      const std::int64_t source_h = h + placement.row;
      put_row(source_h >= 0 && source_h < height ? source + source_h * row_values : nullptr, placement, out);
    }
  }

  /// Writes one row of the output from a row of the image before the crop. If `row` is null, it is outside of the
  /// image.
  void put_row(const std::uint8_t* row, const ImagePlacement& placement, E* out) const {
    const std::int64_t width = d_.x[2], channels = d_.x[3];
    for (std::int64_t w = 0; w < width; ++w, out += channels) {
      const std::int64_t source_w = (placement.flipped ? width - 1 - w : w) + placement.column;
      put(row && source_w >= 0 && source_w < width ? row + source_w * channels : nullptr, out);
    }
  }

  void resize_image(const std::uint8_t* pixels, const ImageRegion& region, const ImagePlacement& placement,
                    PartResizer& resizer, void* workspace, E* out) const {
    const int height = static_cast<int>(d_.x[1]), channels = static_cast<int>(d_.x[3]);
    const std::int64_t row_values = d_.x[2] * d_.x[3];
    auto* const rows = at<std::uint8_t>(workspace, resizer.rows_offset);
    auto* const row = at<std::uint8_t>(workspace, resizer.row_offset);
    const bool is_empty = region.n_pixels() == 0;
    if (!is_empty) {
      resizer.along_rows.compute(region.columns);
      resizer.along_columns.compute(region.rows);
      resizer.along_rows.get().split();
      resize_along_rows({.bytes = pixels,
                         .row_bytes = std::ptrdiff_t{region.columns.n} * channels,
                         .n_rows = region.rows.n,
                         .width = region.columns.n,
                         .channels = channels},
                        resizer.along_rows.get(), rows);
    }
    const ResizeWeights& columns = resizer.along_columns.get();
    for (int h = 0; h < height; ++h, out += row_values) {
      const std::int64_t resized_h = h + placement.row;
      const bool inside = !is_empty && resized_h >= 0 && resized_h < height;
      if (inside) {
        const auto i = static_cast<std::size_t>(resized_h);
        resize_along_columns(rows + static_cast<std::size_t>(columns.first[i]) * row_bytes_,
                             static_cast<std::ptrdiff_t>(row_bytes_),
                             columns.weights.data() + i * static_cast<std::size_t>(columns.max_taps), columns.count[i],
                             static_cast<int>(row_values), row);
      }
      put_row(inside ? row : nullptr, placement, out);
    }
  }

  std::vector<E> table_;  // (256, C)
  int parts_;
  std::size_t row_bytes_;              // size of a resized row
  std::vector<PartResizer> resizers_;  // (parts), if there are regions
  std::size_t workspace_bytes_ = 0;
};

}  // namespace

std::unique_ptr<ImageInput> make_image_input(const ImageInputDescription& d, const CpuContext& context) {
  require_float_or_bf16(d.dtype, "image input");
  return with_elements(d.dtype, [&](auto element) -> std::unique_ptr<ImageInput> {
    return std::make_unique<CpuImageInput<decltype(element)>>(d, context);
  });
}

}  // namespace lockstep::cpu

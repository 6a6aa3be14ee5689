#include "data/region_set.h"

#include <array>
#include <cstring>

#include "data/image_region.h"
#include "data/pool.h"
#include "data/shaped_decoder.h"
#include "lockstep/error.h"

namespace lockstep::data {
namespace {

class RegionSet final : public ImageSet {
 public:
  RegionSet(SampleFile file, const ImageShaping& shaping)
      : file_(std::move(file)),
        offsets_(read_offsets(file_.file, file_.layout)),
        sizes_(read_sizes(file_.file, file_.layout)),
        shaping_(shaping) {
    ImageSetInfo& info = file_.info;
    const auto first = info.first_sample, last = first + info.n_samples;
    offsets_ = {offsets_.begin() + first, offsets_.begin() + last};
    sizes_ = {sizes_.begin() + first, sizes_.begin() + last};
    for (const auto& [height, width] : sizes_) bounds_.add(shaping_, height, width);
    info.height = info.width = shaping_.image_size;
    info.reader_bytes = static_cast<std::size_t>(bounds_.pixels_of_rows * info.channels);
  }
  const ImageSetInfo& info() const override { return file_.info; }
  std::vector<std::int32_t> classes() const override { return file_.labels; }
  void require_unchanged() const override { file_.file.require_unchanged(); }
  double stored_bytes() const override {
    double sum = 0;
    for (const auto& [height, width] : sizes_) sum += static_cast<double>(height) * width * file_.info.channels;
    return sum / static_cast<double>(sizes_.size());
  }
  ReaderWork reader_work() const override { return {.read_bytes = mean_sample_bytes(*this)}; }
  std::vector<std::string> faster_reading() const override { return {"a smaller --short-side"}; }

  std::vector<Field> fields() const override {
    std::vector<Field> out = ImageSet::fields();
    out[0].shape = {bounds_.height, bounds_.width, file_.info.channels};
    out[0].packing = Packing::packed;
    out[0].max_bytes = static_cast<std::size_t>(bounds_.pixels * file_.info.channels);
    out.push_back({.name = kRegionField, .dtype = DType::int32, .shape = {kImageRegionNumbers}});
    out.push_back({.name = kPlaceField, .dtype = DType::int32, .shape = {}, .packing = Packing::place});
    return out;
  }
  std::size_t packed_bytes(std::int64_t sample, std::uint32_t epoch) const override {
    return bytes_of(region(sample, epoch));
  }

  void read(std::int64_t sample, std::uint32_t epoch, std::span<const std::span<std::byte>> targets) const override {
    const StoredRegion stored = region(sample, epoch);
    const std::span<std::byte> pixels = targets[0];
    require(pixels.size() == bytes_of(stored), ErrorCode::internal,
            "the region of sample {} has {} bytes, and cannot be read into {}", sample, bytes_of(stored),
            pixels.size());
    read_region(sample, stored, {reinterpret_cast<std::uint8_t*>(pixels.data()), pixels.size()});
    const std::uint32_t id = id_of(file_.info, sample);
    std::memcpy(targets[1].data(), &file_.labels[static_cast<std::size_t>(sample)], sizeof(std::int32_t));
    std::memcpy(targets[2].data(), &id, sizeof(id));
    std::memcpy(targets[3].data(), &stored.region, sizeof(ImageRegion));
  }

  void read_image(std::int64_t sample, std::uint32_t epoch, std::span<std::uint8_t> image,
                  std::int32_t& label) const override {
    check_request(file_.info, sample, image);
    const auto [height, width] = sizes_[static_cast<std::size_t>(sample)];
    const StoredRegion stored = region(sample, epoch);
    std::vector<std::uint8_t> pixels(bytes_of(stored));
    read_region(sample, stored, pixels);
    const int channels = file_.info.channels, columns = stored.region.columns.n;
    Resizer resizer;
    resize_box(resizer, {pixels.data(), height, width, channels, std::ptrdiff_t{columns} * channels},
               {.left = stored.left, .top = stored.top, .width = columns, .height = stored.region.rows.n},
               box_of(shaping_, height, width, id_of(file_.info, sample), epoch), shaping_.resized_crop,
               shaping_.image_size, image);
    label = file_.labels[static_cast<std::size_t>(sample)];
  }

 private:
  StoredRegion region(std::int64_t sample, std::uint32_t epoch) const {
    const auto [height, width] = sizes_[static_cast<std::size_t>(sample)];
    return region_of(shaping_, height, width, id_of(file_.info, sample), epoch);
  }
  std::size_t bytes_of(const StoredRegion& stored) const {
    return static_cast<std::size_t>(stored.region.n_pixels() * file_.info.channels);
  }

  /// Reads whole rows with one call, which is cheaper than a call per row, and then copies the columns of the region.
  void read_region(std::int64_t sample, const StoredRegion& stored, std::span<std::uint8_t> target) const {
    const auto at = static_cast<std::size_t>(sample);
    const auto channels = static_cast<std::size_t>(file_.info.channels);
    const std::size_t image_row = static_cast<std::size_t>(sizes_[at][1]) * channels;
    const std::size_t row = static_cast<std::size_t>(stored.region.columns.n) * channels;
    const auto n_rows = static_cast<std::size_t>(stored.region.rows.n);
    const std::uint64_t begin = offsets_[at] + static_cast<std::uint64_t>(stored.top) * image_row +
                                static_cast<std::uint64_t>(stored.left) * channels;
    if (row == image_row) return file_.read(sample, begin, target);
    auto rows = pool_.lend();
    rows->resize(file_.info.reader_bytes);
    // Read only up to the last pixel of the region, which is not the end of its row.
    file_.read(sample, begin, std::span(*rows).first((n_rows - 1) * image_row + row));
    for (std::size_t y = 0; y < n_rows; ++y) std::memcpy(&target[y * row], rows->data() + y * image_row, row);
  }

  SampleFile file_;
  std::vector<std::uint64_t> offsets_;              // of each sample in /images
  std::vector<std::array<std::int32_t, 2>> sizes_;  // height, width
  ImageShaping shaping_;
  RegionBounds bounds_;
  mutable Pool<std::vector<std::uint8_t>> pool_;
};

}  // namespace

std::unique_ptr<ImageSet> make_region_set(SampleFile file, const ImageShaping& shaping) {
  return std::make_unique<RegionSet>(std::move(file), shaping);
}

}  // namespace lockstep::data

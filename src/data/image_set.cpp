#include "data/image_set.h"

#include <fmt/format.h>
#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "base/hash.h"
#include "base/pool.h"
#include "data/file.h"
#include "data/image_file.h"
#include "data/shaped_decoder.h"
#include "lockstep/error.h"

namespace lockstep::data {
namespace {

/// The file of an image set and a range of its samples. Labels are held in memory, and are checked when it is opened.
struct SampleFile {
  InputFile file;
  ImageFile layout;
  ImageSetInfo info;
  std::vector<std::int32_t> labels;

  /// Throws data_range unless [start, end) is a range of the samples; end 0: up to the last.
  SampleFile(const std::string& path, std::int64_t start, std::int64_t end)
      : file(path), layout(open_image_file(file)), info(layout.info), labels(read_labels(file, layout)) {
    const std::int64_t n = info.n_samples;
    const std::int64_t last = end == 0 ? n : end;
    require(start >= 0 && start < last && last <= n, ErrorCode::data_range,
            "data.start={} and data.end={} are not a range of the {} samples of {}", start, end, n, path);
    if (!layout.images_xxh3.empty() && !layout.labels_xxh3.empty()) {
      const std::string hashes = layout.images_xxh3 + layout.labels_xxh3;
      info.content_hash = hash_text(hash_bytes(std::as_bytes(std::span(hashes))));
    }
    info.first_sample = start;
    info.n_samples = last - start;
    labels = {labels.begin() + start, labels.begin() + last};
  }

  /// Bytes [begin, begin + target.size()) of /images, which belong to this sample.
  void read(std::int64_t sample, std::uint64_t begin, std::span<std::uint8_t> target) const {
    while (!target.empty()) {
      const ByteRange range = layout.images.contiguous_range(begin, target.size());
      const ReadOutcome outcome = file.try_read(range.offset, std::as_writable_bytes(target.first(range.size_bytes)));
      if (outcome != ReadOutcome::complete)
        file.fail_read(outcome, errno, range.offset, range.size_bytes,
                       fmt::format("sample {}", info.first_sample + sample));
      target = target.subspan(range.size_bytes);
      begin += range.size_bytes;
    }
  }
};

/// Throws internal unless the sample exists and `image` has the size of an image of the set.
void check_request(const ImageSetInfo& info, std::int64_t sample, std::span<const std::uint8_t> image) {
  require(sample >= 0 && sample < info.n_samples && image.size() == info.image_bytes(), ErrorCode::internal,
          "sample {} of {} cannot be read into a buffer of {} bytes", sample, info.n_samples, image.size());
}

/// The position of a sample in the file, by which random numbers are drawn.
std::uint32_t id_of(const ImageSetInfo& info, std::int64_t sample) {
  return static_cast<std::uint32_t>(info.first_sample + sample);
}

class FileImageSet : public ImageSet {
 public:
  explicit FileImageSet(SampleFile file) : file_(std::move(file)) {}
  const ImageSetInfo& info() const final { return file_.info; }
  std::vector<std::int32_t> classes() const final { return file_.labels; }
  void require_unchanged() const final { file_.file.require_unchanged(); }

 protected:
  SampleFile file_;
};

/// Decoded images of one size. Each is read with a single pread, wherever it is stored.
class DecodedSet final : public FileImageSet {
 public:
  using FileImageSet::FileImageSet;

  void read_image(std::int64_t sample, std::uint32_t, std::span<std::uint8_t> image,
                  std::int32_t& label) const override {
    check_request(file_.info, sample, image);
    file_.read(sample, static_cast<std::uint64_t>(file_.info.first_sample + sample) * image.size(), image);
    label = file_.labels[static_cast<std::size_t>(sample)];
  }
  double stored_bytes() const override { return static_cast<double>(file_.info.image_bytes()); }
};

/// The images of another set, resized and cropped.
class ShapedSet final : public DerivedImageSet {
 public:
  ShapedSet(std::unique_ptr<ImageSet> set, const ImageShaping& shaping)
      : DerivedImageSet(std::move(set)), shaping_(shaping) {
    require(info_.channels == 1 || info_.channels == 3, ErrorCode::not_supported,
            "{} has images of {} channels; only images of 1 or 3 channels can be resized", info_.path, info_.channels);
    info_.height = info_.width = shaping_.image_size;
    info_.reader_bytes +=
        set_->info().image_bytes() + static_cast<std::size_t>(info_.width) * set_->info().height * info_.channels;
  }

  void read_image(std::int64_t sample, std::uint32_t epoch, std::span<std::uint8_t> image,
                  std::int32_t& label) const override {
    check_request(info_, sample, image);
    const ImageSetInfo& stored = set_->info();
    auto buffers = pool_.lend();
    buffers->pixels.resize(stored.image_bytes());
    set_->read_image(sample, epoch, buffers->pixels, label);
    const PixelView view{buffers->pixels.data(), stored.height, stored.width, stored.channels,
                         std::ptrdiff_t{stored.width} * stored.channels};
    const Box box = box_of(shaping_, stored.height, stored.width, id_of(info_, sample), epoch);
    resize_box(buffers->resizer, view, {.width = stored.width, .height = stored.height}, box, shaping_.resized_crop,
               shaping_.image_size, image);
  }
  ReaderWork reader_work() const override {
    ReaderWork work = set_->reader_work();
    work.resized_pixels += static_cast<double>(info_.height) * info_.width;
    return work;
  }

 private:
  struct Buffers {
    std::vector<std::uint8_t> pixels;
    Resizer resizer;
  };
  ImageShaping shaping_;
  mutable Pool<Buffers> pool_;
};

/// JPEG and PNG images. They are read, decoded to a size that is not below the needed one, and then resized and
/// cropped.
class EncodedSet final : public FileImageSet {
 public:
  /// shaping.image_size 0: all images have the size in `info` and keep it.
  EncodedSet(SampleFile file, const ImageShaping& shaping)
      : FileImageSet(std::move(file)), offsets_(read_offsets(file_.file, file_.layout)), shaping_(shaping) {
    ImageSetInfo& info = file_.info;
    offsets_ = {offsets_.begin() + info.first_sample, offsets_.begin() + info.first_sample + info.n_samples + 1};
    const EncodedIndex& index = *file_.layout.encoded;
    info.reader_bytes = index.largest_bytes;
    if (shaping_.image_size == 0) return;
    info.height = info.width = shaping_.image_size;
    const auto channels = static_cast<std::size_t>(info.channels);
    info.reader_bytes += static_cast<std::size_t>(index.largest_pixels) * channels +
                         static_cast<std::size_t>(shaping_.image_size) * index.max_height * channels;
  }

  void read_image(std::int64_t sample, std::uint32_t epoch, std::span<std::uint8_t> image,
                  std::int32_t& label) const override {
    check_request(file_.info, sample, image);
    auto buffers = pool_.lend();
    const auto at = static_cast<std::size_t>(sample);
    buffers->bytes.resize(file_.layout.encoded->largest_bytes);
    const auto bytes = std::span(buffers->bytes).first(offsets_[at + 1] - offsets_[at]);
    file_.read(sample, offsets_[at], bytes);
    label = file_.labels[at];
    ShapedDecoder& decoder = buffers->decoder;
    check(decoder.open(bytes), sample, decoder);
    if (shaping_.image_size == 0)
      read_as_stored(sample, decoder, image);
    else
      check(decoder.read_shaped(shaping_, id_of(file_.info, sample), epoch, file_.info.channels, image), sample,
            decoder);
  }
  double stored_bytes() const override {
    return static_cast<double>(offsets_.back() - offsets_.front()) / static_cast<double>(file_.info.n_samples);
  }
  ReaderWork reader_work() const override { return {.decodes = true}; }
  std::vector<std::string> faster_reading() const override { return {"--store decoded"}; }

 private:
  struct Buffers {
    std::vector<std::uint8_t> bytes;
    ShapedDecoder decoder;
  };

  void check(bool good, std::int64_t sample, const ShapedDecoder& decoder) const {
    require(good, ErrorCode::data_damaged, "{}: sample {} cannot be decoded: {}", file_.info.path,
            file_.info.first_sample + sample, decoder.reason());
  }

  void read_as_stored(std::int64_t sample, ShapedDecoder& decoder, std::span<std::uint8_t> image) const {
    require(decoder.height() == file_.info.height && decoder.width() == file_.info.width, ErrorCode::data_damaged,
            "{}: sample {} has {} x {} pixels (height, width), but /sizes contains {} x {}", file_.info.path,
            file_.info.first_sample + sample, decoder.height(), decoder.width(), file_.info.height, file_.info.width);
    check(decoder.read_as_stored(file_.info.channels, image), sample, decoder);
  }

  std::vector<std::uint64_t> offsets_;  // in /images: where each sample begins, and where the last one ends
  ImageShaping shaping_;
  mutable Pool<Buffers> pool_;
};

/// Decoded images of several sizes. A batch has the regions of the images that its samples need, packed; the op
/// image_input resizes them. shaping.image_size is not 0. Every offset and size of the file was checked when it was
/// opened.
class RegionSet final : public FileImageSet {
 public:
  RegionSet(SampleFile file, const ImageShaping& shaping)
      : FileImageSet(std::move(file)),
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

  std::vector<std::uint64_t> offsets_;              // of each sample in /images
  std::vector<std::array<std::int32_t, 2>> sizes_;  // height, width
  ImageShaping shaping_;
  RegionBounds bounds_;
  mutable Pool<std::vector<std::uint8_t>> pool_;
};

/// Sets image_size to 0 if images are returned as stored. This includes the case that all of them already have that
/// size and no crops are requested.
ImageShaping resolved(const ImageSetInfo& stored, ImageShaping shaping) {
  require(shaping.image_size > 0 || stored.height > 0, ErrorCode::model_mismatch,
          "the images of {} have several sizes: set data.image_size", stored.path);
  require(shaping.image_size > 0 || !shaping.resized_crop || stored.height == stored.width, ErrorCode::model_mismatch,
          "the images of {} are not square: set data.image_size", stored.path);
  if (shaping.image_size == 0 && shaping.resized_crop) shaping.image_size = stored.height;
  if (keeps_size(shaping) && stored.height == shaping.image_size && stored.width == shaping.image_size)
    shaping.image_size = 0;
  return shaping;
}

}  // namespace

std::string shape_text(const ImageSetInfo& info) {
  return info.height > 0 ? fmt::format("{} x {} x {}", info.height, info.width, info.channels) : "several sizes";
}

std::string per_class_text(const std::vector<std::int64_t>& samples_per_class) {
  const auto [least, most] = std::ranges::minmax(samples_per_class);
  return least == most ? fmt::format("{} per class", least) : fmt::format("{} to {} per class", least, most);
}

std::vector<Field> ImageSet::fields() const {
  const ImageSetInfo& set = info();
  constexpr std::uint8_t kNoLabelByte = 0xff;  // -1, byte by byte
  return {{.name = kImageField, .dtype = DType::uint8, .shape = {set.height, set.width, set.channels}},
          {.name = kLabelField, .dtype = DType::int32, .shape = {}, .padding_byte = kNoLabelByte},
          {.name = kSampleIdField, .dtype = DType::int32, .shape = {}}};
}

void ImageSet::read(std::int64_t sample, std::uint32_t epoch, std::span<const std::span<std::byte>> targets) const {
  const std::span<std::byte> image = targets[0];
  std::int32_t label = 0;
  read_image(sample, epoch, {reinterpret_cast<std::uint8_t*>(image.data()), image.size()}, label);
  const std::uint32_t id = id_of(info(), sample);
  std::memcpy(targets[1].data(), &label, sizeof(label));
  std::memcpy(targets[2].data(), &id, sizeof(id));
}

std::unique_ptr<ImageSet> shape_image_set(std::unique_ptr<ImageSet> set, const ImageShaping& shaping) {
  const ImageShaping resolved_shaping = resolved(set->info(), shaping);
  if (resolved_shaping.image_size == 0) return set;
  return std::make_unique<ShapedSet>(std::move(set), resolved_shaping);
}

std::unique_ptr<ImageSet> open_image_set(const std::string& path, std::int64_t start, std::int64_t end,
                                         const ImageShaping& shaping) {
  SampleFile file(path, start, end);
  if (file.layout.encoded) {
    const ImageShaping resolved_shaping = resolved(file.info, shaping);
    if (!file.layout.encoded->is_decoded) return std::make_unique<EncodedSet>(std::move(file), resolved_shaping);
    if (resolved_shaping.image_size == 0) return std::make_unique<DecodedSet>(std::move(file));
    return std::make_unique<RegionSet>(std::move(file), resolved_shaping);
  }
  return shape_image_set(std::make_unique<DecodedSet>(std::move(file)), shaping);
}

}  // namespace lockstep::data

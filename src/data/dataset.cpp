#include "data/dataset.h"

#include <cerrno>

#include "data/file.h"
#include "data/image_file.h"
#include "lockstep/error.h"

namespace lockstep::data {
namespace {

/// Labels are held in memory (checked when opened); an image is one pread, wherever it lies.
class FileImageSet : public ImageSet {
 public:
  FileImageSet(const std::string& path, std::int64_t start, std::int64_t end) : file_(path) {
    const ImageFile layout = open_image_file(file_);
    info_ = layout.info;
    images_offset_ = layout.images.offset;
    labels_ = read_labels(file_, layout);
    const std::int64_t n = info_.n_samples;
    const std::int64_t last = end == 0 ? n : end;
    require(start >= 0 && start < last && last <= n, ErrorCode::data_range,
            "data.start={} and data.end={} are no range of the {} samples of {}", start, end, n, path);
    info_.first_sample = start;
    info_.n_samples = last - start;
    labels_ = {labels_.begin() + start, labels_.begin() + last};
  }

  const ImageSetInfo& info() const override { return info_; }

  void read(std::int64_t sample, std::span<std::uint8_t> image, std::int32_t& label) const override {
    require(sample >= 0 && sample < info_.n_samples && image.size() == info_.image_bytes(), ErrorCode::internal,
            "sample {} of {} was asked for with {} bytes", sample, info_.n_samples, image.size());
    const std::uint64_t offset =
        images_offset_ + static_cast<std::uint64_t>(info_.first_sample + sample) * image.size();
    const InputFile::Outcome outcome = file_.try_read(offset, std::as_writable_bytes(image));
    if (outcome != InputFile::Outcome::complete)
      file_.fail_read(outcome, errno, offset, image.size(), fmt::format("sample {}", info_.first_sample + sample));
    label = labels_[static_cast<std::size_t>(sample)];
  }

  void require_unchanged() const override { file_.require_unchanged(); }

 private:
  InputFile file_;
  ImageSetInfo info_;
  std::uint64_t images_offset_ = 0;
  std::vector<std::int32_t> labels_;
};

}  // namespace

std::unique_ptr<ImageSet> open_image_set(const std::string& path, std::int64_t start, std::int64_t end) {
  return std::make_unique<FileImageSet>(path, start, end);
}

}  // namespace lockstep::data

#include "data/sample_file.h"

#include <cerrno>

#include "base/hash.h"
#include "lockstep/error.h"

namespace lockstep::data {

SampleFile::SampleFile(const std::string& path, std::int64_t start, std::int64_t end)
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

void SampleFile::read(std::int64_t sample, std::uint64_t begin, std::span<std::uint8_t> target) const {
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

void check_request(const ImageSetInfo& info, std::int64_t sample, std::span<const std::uint8_t> image) {
  require(sample >= 0 && sample < info.n_samples && image.size() == info.image_bytes(), ErrorCode::internal,
          "sample {} of {} cannot be read into a buffer of {} bytes", sample, info.n_samples, image.size());
}

}  // namespace lockstep::data

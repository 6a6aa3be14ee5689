#include "train/uploader.h"

#include "graph/memory_plan.h"
#include "lockstep/error.h"

namespace lockstep::train {
namespace {

struct Sizes {
  std::size_t images, labels, sample_ids;
  std::size_t buffer() const { return graph::aligned(images) + graph::aligned(labels) + graph::aligned(sample_ids); }
};

Sizes sizes_of(std::int64_t n, std::size_t image_bytes) {
  const auto count = static_cast<std::size_t>(n);
  return {count * image_bytes, count * sizeof(std::int32_t), count * sizeof(std::uint32_t)};
}

}  // namespace

std::size_t Uploader::size_bytes(std::int64_t capacity, std::size_t image_bytes) {
  return 2 * sizes_of(capacity, image_bytes).buffer();
}

Uploader::Uploader(Backend& backend, std::int64_t capacity, std::size_t image_bytes)
    : backend_(backend),
      capacity_(capacity),
      image_bytes_(image_bytes),
      memory_(backend.allocate(size_bytes(capacity, image_bytes), "batches")),
      stream_(backend.make_stream()) {
  const Sizes sizes = sizes_of(capacity, image_bytes);
  auto* at = static_cast<std::byte*>(memory_->data());
  for (Buffer& buffer : buffers_) {
    buffer.place.images = at;
    buffer.place.labels = at += graph::aligned(sizes.images);
    buffer.place.sample_ids = at += graph::aligned(sizes.labels);
    at += graph::aligned(sizes.sample_ids);
    buffer.filled = backend.make_event();
    buffer.read = backend.make_event();
  }
}

void Uploader::upload(const data::Batch& batch, std::int64_t n, const Place& target, Stream& stream) {
  require(static_cast<std::int64_t>(batch.labels.size()) >= n && n <= capacity_, ErrorCode::internal,
          "a batch of {} samples for a step of {}, and buffers of {}", batch.labels.size(), n, capacity_);
  const Sizes sizes = sizes_of(n, image_bytes_);
  const Buffer& before = buffers_[static_cast<std::size_t>(current_)];
  current_ = 1 - current_;
  Buffer& buffer = buffers_[static_cast<std::size_t>(current_)];
  stream_->wait(*buffer.read);
  backend_.copy_to_device(buffer.place.images, batch.images.data(), sizes.images, *stream_);
  backend_.copy_to_device(buffer.place.labels, batch.labels.data(), sizes.labels, *stream_);
  backend_.copy_to_device(buffer.place.sample_ids, batch.sample_ids.data(), sizes.sample_ids, *stream_);
  buffer.filled->record(*stream_);
  stream.wait(*buffer.filled);
  backend_.copy_to_device(target.images, buffer.place.images, sizes.images, stream);
  backend_.copy_to_device(target.labels, buffer.place.labels, sizes.labels, stream);
  backend_.copy_to_device(target.sample_ids, buffer.place.sample_ids, sizes.sample_ids, stream);
  buffer.read->record(stream);
  // The batch before this one may now be read over.
  before.filled->synchronize();
}

}  // namespace lockstep::train

#include "train/uploader.h"

#include "graph/memory_plan.h"
#include "lockstep/error.h"

namespace lockstep::train {

std::size_t Uploader::size_bytes(std::int64_t capacity, std::span<const data::Field> fields) {
  std::size_t buffer_bytes = 0;
  for (const data::Field& field : fields)
    buffer_bytes += graph::aligned(static_cast<std::size_t>(capacity) * field.size_bytes());
  return 2 * buffer_bytes;
}

Uploader::Uploader(Backend& backend, std::int64_t capacity, std::span<const data::Field> fields)
    : backend_(backend),
      capacity_(capacity),
      memory_(backend.allocate(size_bytes(capacity, fields), "batches")),
      stream_(backend.make_stream()) {
  for (const data::Field& field : fields) field_bytes_.push_back(field.size_bytes());
  auto* at = static_cast<std::byte*>(memory_->data());
  for (Buffer& buffer : buffers_) {
    for (const std::size_t sample_bytes : field_bytes_) {
      buffer.fields.push_back(at);
      at += graph::aligned(static_cast<std::size_t>(capacity) * sample_bytes);
    }
    buffer.filled = backend.make_event();
    buffer.read = backend.make_event();
  }
}

void Uploader::upload(const data::Batch& batch, std::int64_t n, std::span<void* const> targets, Stream& stream) {
  const auto n_samples = static_cast<std::size_t>(n);
  require(n <= capacity_ && batch.fields.size() == field_bytes_.size() && targets.size() == field_bytes_.size() &&
              batch.fields[0].size() >= n_samples * field_bytes_[0],
          ErrorCode::internal, "a batch of {} fields does not fit a step of {} samples, or buffers of {} samples",
          batch.fields.size(), n, capacity_);
  const Buffer& before = buffers_[static_cast<std::size_t>(current_)];
  current_ = 1 - current_;
  Buffer& buffer = buffers_[static_cast<std::size_t>(current_)];
  stream_->wait(*buffer.read);
  for (std::size_t i = 0; i < field_bytes_.size(); ++i)
    backend_.copy_to_device(buffer.fields[i], batch.fields[i].data(), n_samples * field_bytes_[i], *stream_);
  buffer.filled->record(*stream_);
  stream.wait(*buffer.filled);
  for (std::size_t i = 0; i < field_bytes_.size(); ++i)
    backend_.copy_to_device(targets[i], buffer.fields[i], n_samples * field_bytes_[i], stream);
  buffer.read->record(stream);
  // The caller may now overwrite the batch before this one.
  before.filled->synchronize();
}

}  // namespace lockstep::train

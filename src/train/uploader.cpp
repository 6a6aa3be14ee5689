#include "train/uploader.h"

#include "graph/memory_plan.h"
#include "lockstep/error.h"

namespace lockstep::train {

std::size_t Uploader::buffer_bytes(std::int64_t capacity, std::span<const data::Field> fields) {
  std::size_t size_bytes = 0;
  for (const data::Field& field : fields)
    size_bytes += graph::aligned(static_cast<std::size_t>(capacity) * field.size_bytes());
  return size_bytes;
}

Uploader::Uploader(Backend& backend, std::size_t buffer_bytes)
    : backend_(backend),
      buffer_bytes_(buffer_bytes),
      memory_(backend.allocate(2 * buffer_bytes, "batches")),
      stream_(backend.make_stream()) {
  auto* at = static_cast<std::byte*>(memory_->data());
  for (Buffer& buffer : buffers_) {
    buffer.memory = at;
    at += buffer_bytes_;
    buffer.filled = backend.make_event();
    buffer.read = backend.make_event();
  }
}

void Uploader::upload(const data::Batch& batch, std::span<const data::Field> fields, std::int64_t n,
                      std::span<void* const> targets, Stream& stream) {
  require(batch.fields.size() == fields.size() && targets.size() >= fields.size() &&
              batch.fields[0].size() >= batch.bytes_of(fields[0], n) && buffer_bytes(n, fields) <= buffer_bytes_,
          ErrorCode::internal, "a batch of {} fields does not fit a step of {} samples, or buffers of {} bytes",
          batch.fields.size(), n, buffer_bytes_);
  const Buffer& before = buffers_[static_cast<std::size_t>(current_)];
  current_ = 1 - current_;
  Buffer& buffer = buffers_[static_cast<std::size_t>(current_)];
  // Visits the fields of a batch of n samples in order. Of a packed field, only the bytes of its samples are copied.
  const auto each_field = [&](const auto& copy) {
    std::byte* at = buffer.memory;
    for (std::size_t i = 0; i < fields.size(); ++i) {
      copy(i, at, batch.bytes_of(fields[i], n));
      at += graph::aligned(static_cast<std::size_t>(n) * fields[i].size_bytes());
    }
  };
  stream_->wait(*buffer.read);
  each_field([&](std::size_t i, std::byte* at, std::size_t n_bytes) {
    backend_.copy(at, batch.fields[i].data(), n_bytes, *stream_);
  });
  buffer.filled->record(*stream_);
  stream.wait(*buffer.filled);
  each_field(
      [&](std::size_t i, const std::byte* at, std::size_t n_bytes) { backend_.copy(targets[i], at, n_bytes, stream); });
  buffer.read->record(stream);
  // The caller may now overwrite the batch before this one.
  before.filled->synchronize();
}

}  // namespace lockstep::train

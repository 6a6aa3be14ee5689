// Uploads batches to the device on a stream of its own, into two buffers in turn, so that a batch is copied while the
// step before it computes. From there the step copies them to where its graph reads them, which is the same place each
// time, as a captured graph requires.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "data/loader.h"
#include "lockstep/backend.h"

namespace lockstep::train {

class Uploader {
 public:
  /// With two buffers of buffer_bytes(). Allocates its memory immediately.
  Uploader(Backend& backend, std::size_t buffer_bytes);
  /// The device memory of a buffer for batches of at most `capacity` samples with these fields.
  static std::size_t buffer_bytes(std::int64_t capacity, std::span<const data::Field> fields);

  /// Begins to copy the first `n` samples of `batch`, and copies them on to `targets`, one for each of its fields, in
  /// `stream`. The batch's memory must not change until the next call returns.
  void upload(const data::Batch& batch, std::span<const data::Field> fields, std::int64_t n,
              std::span<void* const> targets, Stream& stream);

 private:
  struct Buffer {
    std::byte* memory = nullptr;
    std::unique_ptr<Event> filled, read;
  };

  Backend& backend_;
  std::size_t buffer_bytes_;
  std::unique_ptr<Memory> memory_;
  std::unique_ptr<Stream> stream_;
  std::array<Buffer, 2> buffers_;
  int current_ = 0;
};

}  // namespace lockstep::train

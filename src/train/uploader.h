// Batches on their way to the device: on a stream of their own, into two buffers in turn, so that one travels while the
// step before it computes. From there the step copies them to where its graph reads them, which is the same place each
// time (a recorded step has no other).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "data/loader.h"
#include "lockstep/backend.h"

namespace lockstep::train {

class Uploader {
 public:
  /// For batches of at most `capacity` samples. Takes its memory at once.
  Uploader(Backend& backend, std::int64_t capacity, std::size_t image_bytes);
  /// Device memory of both buffers.
  static std::size_t size_bytes(std::int64_t capacity, std::size_t image_bytes);

  struct Place {
    void* images = nullptr;
    void* labels = nullptr;
    void* sample_ids = nullptr;
  };
  /// Begins to copy the first `n` samples of `batch`, and copies them on to `target` in `stream`. The batch's memory
  /// must stay as it is until the call after this one returns.
  void upload(const data::Batch& batch, std::int64_t n, const Place& target, Stream& stream);

 private:
  struct Buffer {
    Place place;
    std::unique_ptr<Event> filled, read;
  };

  Backend& backend_;
  std::int64_t capacity_;
  std::size_t image_bytes_;
  std::unique_ptr<Memory> memory_;
  std::unique_ptr<Stream> stream_;
  std::array<Buffer, 2> buffers_;
  int current_ = 0;
};

}  // namespace lockstep::train

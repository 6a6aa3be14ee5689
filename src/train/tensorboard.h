// TensorBoard event files: records in TFRecord framing, each of which is a protobuf Event with the scalars of one step.
//   record: length (8 bytes, little-endian), masked CRC-32C of it (4), data, masked CRC-32C of the data (4)
// Source: tensorflow/core/lib/io/record_writer.h; CRC-32C (Castagnoli): RFC 3720, appendix B.4.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "base/file.h"

namespace lockstep::train {

class EventWriter {
 public:
  using Scalar = std::pair<std::string_view, double>;  // tag, value

  /// Writes into `directory`, which is created if missing. resume_step < 0: event files there are removed. Otherwise
  /// events of later steps and a damaged end are removed, and writing continues in the last file.
  EventWriter(const std::string& directory, std::int64_t resume_step);

  /// One event, in a single write.
  void write(std::int64_t step, double time_unix, std::span<const Scalar> scalars);

 private:
  void append(const std::string& event);

  std::string path_;
  Descriptor file_;
};

std::uint32_t crc32c(std::string_view data);

/// Bytes from the beginning of an event file to the first event of a step after `last_step`, or to the first damaged
/// record.
std::size_t events_until(std::string_view content, std::int64_t last_step);

}  // namespace lockstep::train

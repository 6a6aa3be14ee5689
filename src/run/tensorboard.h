// TensorBoard event files: records in TFRecord framing, each of which is a protobuf Event (event.proto) with the
// scalars of one step, a text, or the hyperparameters of the run.
//   record: length (8 bytes, little-endian), masked CRC-32C of it (4), data, masked CRC-32C of the data (4)
// Source: tensorflow/core/lib/io/record_writer.h; CRC-32C (Castagnoli): RFC 3720, appendix B.4.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "base/file.h"

namespace lockstep::run {

class EventWriter {
 public:
  using Scalar = std::pair<std::string_view, double>;  // tag, value

  /// Writes into `directory`, which is created if missing. resume_step < 0: event files there are removed. Otherwise
  /// events of later steps and a damaged end are removed, and writing continues in the last file.
  EventWriter(const std::string& directory, std::int64_t resume_step);

  /// Whether this object began the file, so that what is written once per run must still be written.
  bool is_new() const { return is_new_; }

  /// One event, in a single write.
  void write(std::int64_t step, double time_unix, std::span<const Scalar> scalars);
  /// Shown under TEXT, as Markdown. Bytes that are not UTF-8 are replaced.
  void write_text(std::int64_t step, double time_unix, const std::string& tag, const std::string& text);
  /// Shown under HPARAMS, beside the last values of the scalars `metrics` (tags). true, false and numbers become values
  /// of these types, and everything else texts. Of several calls in a file, TensorBoard shows the first.
  void write_hyperparameters(double time_unix, std::span<const std::pair<std::string, std::string>> values,
                             std::span<const std::string> metrics);

 private:
  void append(const std::string& event);

  std::string path_;
  Descriptor file_;
  bool is_new_ = true;
};

std::uint32_t crc32c(std::string_view data);

/// Bytes from the beginning of an event file to the first event of a step after `last_step`, or to the first damaged
/// record.
std::size_t events_until(std::string_view content, std::int64_t last_step);

}  // namespace lockstep::run

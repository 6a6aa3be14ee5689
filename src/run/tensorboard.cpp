#include "run/tensorboard.h"

#include <fcntl.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <optional>
#include <system_error>
#include <vector>

#include "base/clock.h"
#include "base/printable.h"
#include "base/process.h"
#include "base/utf8.h"
#include "lockstep/error.h"
#include "run/event.pb.h"

namespace lockstep::run {
namespace {

constexpr std::size_t kHeaderBytes = 12;  // the length of the record, and the checksum of the length
constexpr std::size_t kFooterBytes = 4;

constexpr std::array<std::uint32_t, 256> kCrcTable = [] {
  constexpr std::uint32_t kPolynomial = 0x82F63B78u;  // Castagnoli, reflected
  std::array<std::uint32_t, 256> table{};
  for (std::uint32_t i = 0; i < table.size(); ++i) {
    std::uint32_t crc = i;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1u) != 0 ? kPolynomial : 0u);
    table[i] = crc;
  }
  return table;
}();

std::uint32_t masked_crc(std::string_view data) {
  const std::uint32_t crc = crc32c(data);
  return ((crc >> 15) | (crc << 17)) + 0xA282EAD8u;
}

template <typename T>
void append_little_endian(std::string& out, T value) {
  for (std::size_t byte = 0; byte < sizeof(T); ++byte) out += static_cast<char>(value >> (8 * byte) & 0xFF);
}

template <typename T>
T little_endian(std::string_view bytes) {
  T value = 0;
  for (std::size_t byte = sizeof(T); byte-- > 0;) value = value << 8 | static_cast<unsigned char>(bytes[byte]);
  return value;
}

std::vector<std::string> event_files(const std::string& directory) {
  std::vector<std::string> paths;
  for (const auto& entry : std::filesystem::directory_iterator(directory)) {
    if (entry.path().filename().string().find("tfevents") != std::string::npos) paths.push_back(entry.path());
  }
  std::sort(paths.begin(), paths.end());
  return paths;
}

/// The data of the record at the beginning of `content`; false if it is truncated or damaged.
bool read_record(std::string_view content, std::string_view& data) {
  if (content.size() < kHeaderBytes) return false;
  const auto length = little_endian<std::uint64_t>(content);
  if (little_endian<std::uint32_t>(content.substr(8)) != masked_crc(content.substr(0, 8))) return false;
  if (length > content.size() - kHeaderBytes || content.size() - kHeaderBytes - length < kFooterBytes) return false;
  data = content.substr(kHeaderBytes, length);
  return little_endian<std::uint32_t>(content.substr(kHeaderBytes + length)) == masked_crc(data);
}

tensorboard::Event event_at(double time_unix, std::int64_t step = 0) {
  tensorboard::Event event;
  event.set_wall_time(time_unix);
  event.set_step(step);
  return event;
}

/// A value that a plugin of TensorBoard shows.
tensorboard::Summary::Value* add_value(tensorboard::Event& event, const std::string& tag, const char* plugin) {
  tensorboard::Summary::Value* value = event.mutable_summary()->add_value();
  value->set_tag(tag);
  value->mutable_metadata()->mutable_plugin_data()->set_plugin_name(plugin);
  value->mutable_metadata()->set_data_class(tensorboard::SummaryMetadata::TENSOR);
  return value;
}

std::optional<double> number_of(const std::string& text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool is_whole = error == std::errc() && end == text.data() + text.size();
  return is_whole && std::isfinite(value) ? std::optional(value) : std::nullopt;
}

}  // namespace

std::uint32_t crc32c(std::string_view data) {
  std::uint32_t crc = 0xFFFFFFFFu;
  for (const char c : data) crc = (crc >> 8) ^ kCrcTable[(crc ^ static_cast<unsigned char>(c)) & 0xFF];
  return ~crc;
}

std::size_t events_until(std::string_view content, std::int64_t last_step) {
  std::size_t end = 0;
  std::string_view data;
  while (read_record(content.substr(end), data)) {
    tensorboard::Event event;
    if (!event.ParseFromArray(data.data(), static_cast<int>(data.size())) || event.step() > last_step) break;
    end += kHeaderBytes + data.size() + kFooterBytes;
  }
  return end;
}

EventWriter::EventWriter(const std::string& directory, std::int64_t resume_step) {
  std::filesystem::create_directories(directory);
  std::size_t size_bytes = 0;
  for (const std::string& path : event_files(directory)) {
    if (resume_step < 0) {
      std::filesystem::remove(path);
      continue;
    }
    size_bytes = events_until(read_file(path), resume_step);
    const bool is_cut = ::truncate(path.c_str(), static_cast<off_t>(size_bytes)) == 0;
    require(is_cut, ErrorCode::system_call, "cannot shorten {}: {}", path, std::strerror(errno));
    path_ = path;
  }
  if (path_.empty()) {
    path_ = fmt::format("{}/events.out.tfevents.{:010d}.{}", directory, static_cast<std::int64_t>(unix_seconds()),
                        host_name());
  }
  file_ = open_file(path_, O_WRONLY | O_APPEND | O_CREAT);
  is_new_ = size_bytes == 0;
  if (!is_new_) return;
  tensorboard::Event version = event_at(unix_seconds());
  version.set_file_version("brain.Event:2");
  append(version.SerializeAsString());
}

void EventWriter::write(std::int64_t step, double time_unix, std::span<const Scalar> scalars) {
  tensorboard::Event event = event_at(time_unix, step);
  for (const auto& [tag, value] : scalars) {
    tensorboard::Summary::Value* entry = event.mutable_summary()->add_value();
    entry->set_tag(std::string(tag));
    entry->set_simple_value(static_cast<float>(value));
  }
  append(event.SerializeAsString());
}

void EventWriter::write_text(std::int64_t step, double time_unix, const std::string& tag, const std::string& text) {
  tensorboard::Event event = event_at(time_unix, step);
  tensorboard::Summary::Value* entry = add_value(event, tag, "text");
  entry->mutable_tensor()->set_dtype(tensorboard::Tensor::STRING);
  entry->mutable_tensor()->mutable_tensor_shape();  // a scalar
  entry->mutable_tensor()->add_string_val(valid_utf8(text));
  append(event.SerializeAsString());
}

/// Writes two summaries, like tensorboard/plugins/hparams/summary.py: the columns of the table, and the values of this
/// run.
void EventWriter::write_hyperparameters(double time_unix, std::span<const std::pair<std::string, std::string>> values,
                                        std::span<const std::string> metrics) {
  tensorboard::HyperparametersData table, start;
  table.mutable_experiment()->set_time_created_secs(time_unix);
  start.mutable_session_start_info()->set_start_time_secs(time_unix);
  for (const auto& [name, text] : values) {
    tensorboard::HyperparameterInfo* info = table.mutable_experiment()->add_hparam_infos();
    tensorboard::Value& value = (*start.mutable_session_start_info()->mutable_hparams())[valid_utf8(name)];
    info->set_name(valid_utf8(name));
    if (text == "true" || text == "false") {
      info->set_type(tensorboard::HyperparameterInfo::BOOL);
      value.set_bool_value(text == "true");
    } else if (const std::optional<double> number = number_of(text)) {
      info->set_type(tensorboard::HyperparameterInfo::FLOAT64);
      value.set_number_value(*number);
    } else {
      info->set_type(tensorboard::HyperparameterInfo::STRING);
      value.set_string_value(valid_utf8(text));
    }
  }
  for (const std::string& tag : metrics) table.mutable_experiment()->add_metric_infos()->mutable_name()->set_tag(tag);
  const auto write_data = [&](const char* tag, const tensorboard::HyperparametersData& data) {
    tensorboard::Event event = event_at(time_unix);
    tensorboard::Summary::Value* entry = add_value(event, tag, "hparams");
    entry->mutable_metadata()->mutable_plugin_data()->set_content(data.SerializeAsString());
    entry->mutable_tensor()->set_dtype(tensorboard::Tensor::FLOAT);
    entry->mutable_tensor()->mutable_tensor_shape()->add_dim()->set_size(0);  // no value: everything is in the metadata
    append(event.SerializeAsString());
  };
  write_data("_hparams_/experiment", table);
  write_data("_hparams_/session_start_info", start);
}

void EventWriter::append(const std::string& event) {
  std::string record;
  append_little_endian<std::uint64_t>(record, event.size());
  append_little_endian<std::uint32_t>(record, masked_crc(record));
  record += event;
  append_little_endian<std::uint32_t>(record, masked_crc(event));
  write_fully(file_.get(), record, path_);
}

}  // namespace lockstep::run

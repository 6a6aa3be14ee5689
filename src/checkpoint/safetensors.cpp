// Source: huggingface/safetensors, README "Format": u64 bytes of a JSON header, the header, the tensors without gaps.
#include "checkpoint/safetensors.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>
#include <tuple>

#include "base/json.h"
#include "base/signals.h"
#include "lockstep/bf16.h"
#include "lockstep/error.h"
#include "lockstep/fp16.h"

namespace lockstep::checkpoint {
namespace {

constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;  // the limit of the format's own library
constexpr std::uint64_t kHeaderAlignment = 8;
// Written bytes are synced as often as this, so that no sync lasts long and Ctrl-C takes effect at once.
constexpr std::uint64_t kSyncBytes = std::uint64_t{64} << 20;
// Converted at a time: few enough to stay in the cache.
constexpr std::size_t kConvertedElements = std::size_t{1} << 18;
constexpr const char* kMetadata = "__metadata__";

using Json = nlohmann::json;
using Entry = SafetensorsFile::Entry;

bool is_counter(const NamedTensor& tensor) { return tensor.name.ends_with("num_batches_tracked"); }

// ------------------------------------------------------------------------------------------------------ writing

std::string_view stored_name(DType dtype) {
  switch (dtype) {
    case DType::fp32:
      return "F32";
    case DType::bf16:
      return "BF16";
    case DType::fp16:
      return "F16";
    default:
      fail(ErrorCode::internal, "tensors cannot be stored as {}", name(dtype));
  }
}

/// Rounds values of `tensor` from fp32 to 16 bits.
template <typename Stored>
std::vector<Stored> rounded(const NamedTensor& tensor, std::span<const float> values, DType dtype,
                            Stored (*round)(float)) {
  std::vector<Stored> stored(values.size());
  bool overflows = false;
  for (std::size_t i = 0; i < stored.size(); ++i) {
    stored[i] = round(values[i]);
    overflows |= std::isinf(to_float(stored[i])) && !std::isinf(values[i]);
  }
  if (overflows) {
    const std::vector<float> all = tensor.values();
    const float largest =
        *std::ranges::max_element(all, {}, [](float x) { return std::isfinite(x) ? std::abs(x) : 0.0f; });
    fail(ErrorCode::not_supported, "{} has the value {}, which is too large for {}: store the tensors as {}fp32",
         tensor.name, largest, name(dtype), dtype == DType::fp16 ? "bf16 or " : "");
  }
  return stored;
}

std::vector<std::int64_t> integers_of(std::span<const float> values) {
  std::vector<std::int64_t> integers;
  for (const float value : values) integers.push_back(static_cast<std::int64_t>(value));
  return integers;
}

/// Returns the header, and stores each tensor's position in `offsets`. Eight-byte values come first, so that all
/// tensors are aligned in memory.
std::string make_header(const std::vector<NamedTensor>& tensors, const std::map<std::string, std::string>& metadata,
                        DType dtype, std::vector<std::uint64_t>& offsets) {
  const auto size_of = [&](const NamedTensor& tensor) {
    return is_counter(tensor) ? sizeof(std::int64_t) : lockstep::size_bytes(dtype);
  };
  offsets.resize(tensors.size());
  std::uint64_t end = 0;
  for (const bool counters : {true, false}) {
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      if (is_counter(tensors[i]) != counters) continue;
      offsets[i] = end;
      end += tensors[i].n_elements() * size_of(tensors[i]);
    }
  }

  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  if (!metadata.empty()) header[kMetadata] = metadata;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const NamedTensor& tensor = tensors[i];
    require(!header.contains(tensor.name), ErrorCode::internal, "{} occurs twice", tensor.name);
    nlohmann::ordered_json shape = nlohmann::ordered_json::array();
    for (int d = 0; d < tensor.shape.rank(); ++d) shape.push_back(tensor.shape[d]);
    header[tensor.name] = {{"dtype", is_counter(tensor) ? "I64" : stored_name(dtype)},
                           {"shape", shape},
                           {"data_offsets", {offsets[i], offsets[i] + tensor.n_elements() * size_of(tensor)}}};
  }
  std::string text = header.dump();
  text.resize((text.size() + kHeaderAlignment - 1) / kHeaderAlignment * kHeaderAlignment, ' ');
  return text;
}

// ------------------------------------------------------------------------------------------------------ reading

template <typename T, typename Convert>
void convert(std::span<const std::byte> bytes, std::span<float> out, Convert convert_one) {
  for (std::size_t i = 0; i < out.size(); ++i) {
    T element;
    std::memcpy(&element, bytes.data() + i * sizeof(T), sizeof(T));
    out[i] = convert_one(element);
  }
}

/// Bytes of an element; 0 for a type that is not supported.
std::uint64_t element_bytes(const std::string& dtype) {
  if (dtype == "F64" || dtype == "I64") return 8;
  if (dtype == "F32") return 4;
  if (dtype == "F16" || dtype == "BF16") return 2;
  return 0;
}

void to_floats(const std::string& dtype, std::span<const std::byte> bytes, std::span<float> out) {
  if (dtype == "F64") return convert<double>(bytes, out, [](double x) { return static_cast<float>(x); });
  if (dtype == "I64") return convert<std::int64_t>(bytes, out, [](std::int64_t x) { return static_cast<float>(x); });
  if (dtype == "F16") return convert<Fp16>(bytes, out, [](Fp16 x) { return to_float(x); });
  convert<Bf16>(bytes, out, [](Bf16 x) { return to_float(x); });
}

Entry parse_entry(const std::string& path, const std::string& name, const Json& json, std::uint64_t data_bytes) {
  const auto damaged = ErrorCode::model_file_damaged;
  const auto is_list = [&](const char* key) { return json.contains(key) && json[key].is_array(); };
  require(json.is_object() && json.contains("dtype") && json["dtype"].is_string() && is_list("shape") &&
              is_list("data_offsets") && json["data_offsets"].size() == 2,
          damaged, "{} is damaged: {} has no dtype, shape or data_offsets", path, name);
  for (const char* key : {"shape", "data_offsets"})
    for (const Json& number : json[key])
      require(number.is_number_unsigned(), damaged, "{} is damaged: {} of {} does not consist of whole numbers", path,
              key, name);

  Entry entry{name,
              json["dtype"].get<std::string>(),
              {},
              json["data_offsets"][0].get<std::uint64_t>(),
              json["data_offsets"][1].get<std::uint64_t>()};
  const std::uint64_t size = element_bytes(entry.dtype);
  require(size > 0, ErrorCode::checkpoint_mismatch, "{} contains {} as {}; F32, F64, F16, BF16 and I64 can be read",
          path, name, entry.dtype);
  require(json["shape"].size() <= 4, ErrorCode::checkpoint_mismatch,
          "{} contains {} with {} dimensions; at most 4 can be read", path, name, json["shape"].size());
  std::uint64_t n_bytes = size;
  std::vector<std::uint64_t> dims;
  for (const Json& number : json["shape"]) {
    const auto d = number.get<std::uint64_t>();
    require(!__builtin_mul_overflow(n_bytes, d, &n_bytes) && n_bytes <= data_bytes, damaged,
            "{} is damaged: {} has more elements than the file has bytes", path, name);
    require(d <= data_bytes, damaged, "{} is damaged: {} has an impossible shape", path, name);
    dims.push_back(d);
  }
  require(entry.begin <= entry.end && entry.end <= data_bytes && entry.end - entry.begin == n_bytes, damaged,
          "{} is damaged: {} should have {} bytes, but its place is {} to {} of {}", path, name, n_bytes, entry.begin,
          entry.end, data_bytes);
  entry.shape = shape_of(dims);
  return entry;
}

/// Throws unless the tensors, in this order, cover the data from the first to the last byte, without gaps or overlaps.
void check_places(const std::string& path, const std::vector<Entry>& entries, std::uint64_t data_bytes) {
  std::uint64_t at = 0;
  for (const Entry& entry : entries) {
    require(entry.begin == at, ErrorCode::model_file_damaged,
            "{} is damaged: {} begins at byte {} of the data; expected {}", path, entry.name, entry.begin, at);
    at = entry.end;
  }
  require(at == data_bytes, ErrorCode::model_file_damaged, "{} is damaged: {} bytes of data, {} belong to tensors",
          path, data_bytes, at);
}

}  // namespace

Shape shape_of(std::span<const std::uint64_t> dims) {
  const auto d = [&](std::size_t i) { return static_cast<std::int64_t>(dims[i]); };
  if (dims.empty()) return {};
  if (dims.size() == 1) return {d(0)};
  if (dims.size() == 2) return {d(0), d(1)};
  if (dims.size() == 3) return {d(0), d(1), d(2)};
  return {d(0), d(1), d(2), d(3)};
}

SafetensorsFile::SafetensorsFile(const std::string& path)
    : path_(path), file_(open_regular_file(path, ErrorCode::cannot_open)) {
  const auto damaged = ErrorCode::model_file_damaged;
  const std::uint64_t file_bytes = size_bytes(file_, path);
  std::uint64_t header_bytes = 0;
  require(file_bytes >= sizeof header_bytes, damaged, "{} is not a safetensors file: it has {} bytes", path,
          file_bytes);
  read_at(file_, path, std::as_writable_bytes(std::span(&header_bytes, 1)), 0, damaged);
  require(header_bytes <= kMaxHeaderBytes && header_bytes <= file_bytes - sizeof header_bytes, damaged,
          "{} is truncated or not a safetensors file: its header should have {} bytes, the file has {}", path,
          header_bytes, file_bytes);
  std::string text(header_bytes, '\0');
  read_at(file_, path, std::as_writable_bytes(std::span(text)), sizeof header_bytes, damaged);
  const Json header = parse_json(text, path + ", its header,", damaged);
  require(header.is_object(), damaged, "{} is damaged or not a safetensors file: its header is not a JSON object",
          path);
  data_begin_ = sizeof header_bytes + header_bytes;

  const std::uint64_t data_bytes = file_bytes - data_begin_;
  for (const auto& [name, json] : header.items())
    if (name != kMetadata) entries_.push_back(parse_entry(path, name, json, data_bytes));
  std::ranges::sort(entries_, {}, [](const Entry& e) { return std::tie(e.begin, e.end, e.name); });
  check_places(path, entries_, data_bytes);
  if (!header.contains(kMetadata) || !header[kMetadata].is_object()) return;
  for (const auto& [key, value] : header[kMetadata].items())
    if (value.is_string()) metadata_[key] = value.get<std::string>();
}

std::shared_ptr<const SafetensorsFile> SafetensorsFile::open(const std::string& path) {
  return std::shared_ptr<const SafetensorsFile>(new SafetensorsFile(path));
}

NamedTensor SafetensorsFile::tensor(const Entry& entry) const {
  NamedTensor out(entry.name, entry.shape, [file = shared_from_this(), entry](std::size_t first, std::span<float> to) {
    file->read(entry, first, to);
  });
  if (entry.dtype == "BF16") out.dtype = DType::bf16;
  if (entry.dtype == "F16") out.dtype = DType::fp16;
  return out;
}

std::vector<NamedTensor> SafetensorsFile::tensors() const {
  std::vector<NamedTensor> out;
  for (const Entry& entry : entries_) out.push_back(tensor(entry));
  return out;
}

void SafetensorsFile::read(const Entry& entry, std::size_t first, std::span<float> out) const {
  throw_if_stopped();
  const std::uint64_t size = element_bytes(entry.dtype);
  const auto read = [&](std::span<std::byte> bytes) {
    read_at(file_, path_, bytes, data_begin_ + entry.begin + first * size, ErrorCode::model_file_damaged);
  };
  if (entry.dtype == "F32") return read(std::as_writable_bytes(out));
  std::vector<std::byte> bytes;
  for (std::size_t n = 0; !out.empty(); out = out.subspan(n), first += n) {
    n = std::min(kConvertedElements, out.size());
    bytes.resize(n * size);
    read(bytes);
    to_floats(entry.dtype, bytes, out.first(n));
  }
}

void write_safetensors(const std::string& path, const std::vector<NamedTensor>& tensors,
                       const std::map<std::string, std::string>& metadata, DType dtype,
                       const std::function<void(std::uint64_t size_bytes)>& wrote) {
  std::vector<std::uint64_t> offsets;
  const std::string header = make_header(tensors, metadata, dtype, offsets);
  const auto header_bytes = static_cast<std::uint64_t>(header.size());
  const std::uint64_t data_begin = sizeof header_bytes + header_bytes;

  PendingFile pending(path, PartialName::fixed);
  const Descriptor file = pending.create();
  std::uint64_t unsynced = 0;
  const auto write = [&](const auto& values, std::uint64_t offset) {
    const std::span<const std::byte> bytes = std::as_bytes(std::span(values));
    write_at(file, pending.partial_path(), bytes, offset);
    if (wrote) wrote(bytes.size());
    unsynced += bytes.size();
    if (unsynced < kSyncBytes) return;
    sync(file, pending.partial_path());
    unsynced = 0;
  };
  write(std::array{header_bytes}, 0);
  write(header, sizeof header_bytes);
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const NamedTensor& tensor = tensors[i];
    for_each_piece(tensor, [&](std::size_t first, std::span<const float> values) {
      const std::uint64_t size = is_counter(tensor) ? sizeof(std::int64_t) : size_bytes(dtype);
      const std::uint64_t at = data_begin + offsets[i] + first * size;
      if (is_counter(tensor))
        write(integers_of(values), at);
      else if (dtype == DType::bf16)
        write(rounded(tensor, values, dtype, to_bf16), at);
      else if (dtype == DType::fp16)
        write(rounded(tensor, values, dtype, to_fp16), at);
      else
        write(values, at);
    });
  }
  pending.publish();
}

std::vector<NamedTensor> read_safetensors(const std::string& path) { return SafetensorsFile::open(path)->tensors(); }

}  // namespace lockstep::checkpoint

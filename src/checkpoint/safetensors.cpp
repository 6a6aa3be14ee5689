// Source: huggingface/safetensors, README "Format": u64 bytes of a JSON header, the header, the tensors without gaps.
#include "checkpoint/safetensors.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "lockstep/error.h"

namespace lockstep::checkpoint {
namespace {

constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;  // the limit of the format's own library
constexpr std::uint64_t kHeaderAlignment = 8;
constexpr const char* kMetadata = "__metadata__";

using Json = nlohmann::ordered_json;

bool is_counter(const NamedTensor& tensor) { return tensor.name.ends_with("num_batches_tracked"); }

// ------------------------------------------------------------------------------------------------------ writing

std::vector<std::byte> bytes_of(const NamedTensor& tensor) {
  if (!is_counter(tensor)) {
    const auto bytes = std::as_bytes(std::span(tensor.values));
    return {bytes.begin(), bytes.end()};
  }
  std::vector<std::int64_t> integers;
  for (const float value : tensor.values) integers.push_back(static_cast<std::int64_t>(value));
  const auto bytes = std::as_bytes(std::span(integers));
  return {bytes.begin(), bytes.end()};
}

/// The header; `offsets` gets each tensor's place. Eight-byte values come first, so that all are aligned in memory.
std::string make_header(const std::vector<NamedTensor>& tensors, const std::map<std::string, std::string>& metadata,
                        std::vector<std::uint64_t>& offsets) {
  offsets.resize(tensors.size());
  std::uint64_t end = 0;
  for (const bool counters : {true, false}) {
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      if (is_counter(tensors[i]) != counters) continue;
      offsets[i] = end;
      end += tensors[i].values.size() * (counters ? 8 : 4);
    }
  }

  Json header = Json::object();
  if (!metadata.empty()) header[kMetadata] = metadata;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const NamedTensor& tensor = tensors[i];
    require(static_cast<std::uint64_t>(tensor.shape.n_elements()) == tensor.values.size(), ErrorCode::internal,
            "{} has {} values for the shape {}", tensor.name, tensor.values.size(), tensor.shape.text());
    require(!header.contains(tensor.name), ErrorCode::internal, "{} occurs twice", tensor.name);
    const std::uint64_t size = is_counter(tensor) ? 8 : 4;
    Json shape = Json::array();
    for (int d = 0; d < tensor.shape.rank(); ++d) shape.push_back(tensor.shape[d]);
    header[tensor.name] = {{"dtype", size == 8 ? "I64" : "F32"},
                           {"shape", shape},
                           {"data_offsets", {offsets[i], offsets[i] + tensor.values.size() * size}}};
  }
  std::string text = header.dump();
  text.resize((text.size() + kHeaderAlignment - 1) / kHeaderAlignment * kHeaderAlignment, ' ');
  return text;
}

// ------------------------------------------------------------------------------------------------------ reading

float from_half(std::uint16_t bits) {
  const int exponent = (bits >> 10) & 0x1f;
  const int fraction = bits & 0x3ff;
  float value = 0;
  if (exponent == 0x1f)
    value = fraction != 0 ? std::nanf("") : INFINITY;
  else if (exponent == 0)
    value = std::ldexp(static_cast<float>(fraction), -24);
  else
    value = std::ldexp(static_cast<float>(fraction + 1024), exponent - 25);
  return (bits & 0x8000) != 0 ? -value : value;
}

float from_bfloat(std::uint16_t bits) { return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16); }

template <typename T, typename Convert>
std::vector<float> converted(std::span<const std::byte> bytes, Convert convert) {
  std::vector<float> values(bytes.size() / sizeof(T));
  for (std::size_t i = 0; i < values.size(); ++i) {
    T element;
    std::memcpy(&element, bytes.data() + i * sizeof(T), sizeof(T));
    values[i] = convert(element);
  }
  return values;
}

/// Bytes of an element; 0: a type that is not read.
std::uint64_t element_bytes(const std::string& dtype) {
  if (dtype == "F64" || dtype == "I64") return 8;
  if (dtype == "F32") return 4;
  if (dtype == "F16" || dtype == "BF16") return 2;
  return 0;
}

std::vector<float> to_floats(const std::string& dtype, std::span<const std::byte> bytes) {
  if (dtype == "F32") return converted<float>(bytes, [](float x) { return x; });
  if (dtype == "F64") return converted<double>(bytes, [](double x) { return static_cast<float>(x); });
  if (dtype == "I64") return converted<std::int64_t>(bytes, [](std::int64_t x) { return static_cast<float>(x); });
  if (dtype == "F16") return converted<std::uint16_t>(bytes, from_half);
  return converted<std::uint16_t>(bytes, from_bfloat);
}

struct Entry {
  std::string name, dtype;
  Shape shape;
  std::uint64_t begin = 0, end = 0;  // bytes of the data, from its begin
};

Shape make_shape(const std::vector<std::int64_t>& d) {
  if (d.empty()) return {};
  if (d.size() == 1) return {d[0]};
  if (d.size() == 2) return {d[0], d[1]};
  if (d.size() == 3) return {d[0], d[1], d[2]};
  return {d[0], d[1], d[2], d[3]};
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
  std::vector<std::int64_t> dims;
  for (const Json& number : json["shape"]) {
    const auto d = number.get<std::uint64_t>();
    require(!__builtin_mul_overflow(n_bytes, d, &n_bytes) && n_bytes <= data_bytes, damaged,
            "{} is damaged: {} has more elements than the file has bytes", path, name);
    require(d <= data_bytes, damaged, "{} is damaged: {} has an impossible shape", path, name);
    dims.push_back(static_cast<std::int64_t>(d));
  }
  require(entry.begin <= entry.end && entry.end <= data_bytes && entry.end - entry.begin == n_bytes, damaged,
          "{} is damaged: {} should have {} bytes, but its place is {} to {} of {}", path, name, n_bytes, entry.begin,
          entry.end, data_bytes);
  entry.shape = make_shape(dims);
  return entry;
}

/// Tensors follow each other from the first to the last byte of the data: no gap, no byte used twice.
void check_places(const std::string& path, const std::vector<Entry>& entries, std::uint64_t data_bytes) {
  std::vector<const Entry*> order;
  order.reserve(entries.size());
  for (const Entry& entry : entries) order.push_back(&entry);
  std::ranges::sort(order, {}, [](const Entry* e) { return std::pair(e->begin, e->end); });
  std::uint64_t at = 0;
  for (const Entry* entry : order) {
    require(entry->begin == at, ErrorCode::model_file_damaged,
            "{} is damaged: {} begins at byte {} of the data; expected {}", path, entry->name, entry->begin, at);
    at = entry->end;
  }
  require(at == data_bytes, ErrorCode::model_file_damaged, "{} is damaged: {} bytes of data, {} belong to tensors",
          path, data_bytes, at);
}

struct OpenFile {
  Descriptor file;
  std::uint64_t file_bytes = 0, data_begin = 0;
  Json header;
};

/// The file with its header, which is a JSON object. Every size was checked against the file.
OpenFile open_safetensors(const std::string& path) {
  const auto damaged = ErrorCode::model_file_damaged;
  OpenFile out{.file = open_regular_file(path, ErrorCode::checkpoint_not_found), .header = {}};
  out.file_bytes = size_bytes(out.file, path);
  std::uint64_t header_bytes = 0;
  require(out.file_bytes >= sizeof header_bytes, damaged, "{} is not a safetensors file: it has {} bytes", path,
          out.file_bytes);
  read_at(out.file, path, std::as_writable_bytes(std::span(&header_bytes, 1)), 0, damaged);
  require(header_bytes <= kMaxHeaderBytes && header_bytes <= out.file_bytes - sizeof header_bytes, damaged,
          "{} is truncated or not a safetensors file: its header should have {} bytes, the file has {}", path,
          header_bytes, out.file_bytes);
  std::string text(header_bytes, '\0');
  read_at(out.file, path, std::as_writable_bytes(std::span(text)), sizeof header_bytes, damaged);
  out.header = Json::parse(text, nullptr, false);
  require(out.header.is_object(), damaged, "{} is damaged or not a safetensors file: its header is not a JSON object",
          path);
  out.data_begin = sizeof header_bytes + header_bytes;
  return out;
}

}  // namespace

void write_safetensors(const std::string& path, const std::vector<NamedTensor>& tensors,
                       const std::map<std::string, std::string>& metadata) {
  std::vector<std::uint64_t> offsets;
  const std::string header = make_header(tensors, metadata, offsets);
  const auto header_bytes = static_cast<std::uint64_t>(header.size());
  const std::uint64_t data_begin = sizeof header_bytes + header_bytes;

  PendingFile pending(path, PartialName::fixed, ErrorCode::checkpoint_write);
  const Descriptor file = pending.create();
  const auto write = [&](std::span<const std::byte> bytes, std::uint64_t offset) {
    write_at(file, pending.partial_path(), bytes, offset, ErrorCode::checkpoint_write);
  };
  write(std::as_bytes(std::span(&header_bytes, 1)), 0);
  write(std::as_bytes(std::span(header)), sizeof header_bytes);
  for (std::size_t i = 0; i < tensors.size(); ++i) write(bytes_of(tensors[i]), data_begin + offsets[i]);
  pending.publish();
}

std::vector<NamedTensor> read_safetensors(const std::string& path) {
  const OpenFile open = open_safetensors(path);
  std::vector<Entry> entries;
  const std::uint64_t data_bytes = open.file_bytes - open.data_begin;
  for (const auto& [name, json] : open.header.items())
    if (name != kMetadata) entries.push_back(parse_entry(path, name, json, data_bytes));
  check_places(path, entries, data_bytes);

  std::vector<NamedTensor> tensors;
  std::vector<std::byte> bytes;
  for (const Entry& entry : entries) {
    bytes.resize(entry.end - entry.begin);
    read_at(open.file, path, bytes, open.data_begin + entry.begin, ErrorCode::model_file_damaged);
    tensors.push_back({entry.name, entry.shape, to_floats(entry.dtype, bytes)});
  }
  return tensors;
}

std::map<std::string, std::string> read_safetensors_metadata(const std::string& path) {
  const OpenFile open = open_safetensors(path);
  std::map<std::string, std::string> out;
  if (!open.header.contains(kMetadata) || !open.header[kMetadata].is_object()) return out;
  for (const auto& [key, value] : open.header[kMetadata].items())
    if (value.is_string()) out[key] = value.get<std::string>();
  return out;
}

}  // namespace lockstep::checkpoint

// lockstep-arrow, a program of its own: it reads one Parquet, Arrow or compressed file with the libraries of Arrow, and
// writes what it contains to standard output, for src/data/arrow_process.h. It is the only code that is linked with
// them, so nothing else needs them, and a damaged or hostile file can harm nothing but this process, whose memory and
// time are limited.
//
//   lockstep-arrow FILE rows [FIELD...]      the columns, then these fields of each row, or all as one object of JSON
//   lockstep-arrow FILE decompress           the bytes of a file that was compressed with gzip or zstd
//
// The output is a sequence of messages: a letter, the size of the rest as uint32, and the rest.
//
//   C  JSON: {"columns": [{"name", "type"}], "fields": [kind], "features"}. The kind of a requested field is "text",
//      "bytes" or "json", or "" if there is no such field. "features" is what the library `datasets` recorded.
//   R  a row: for each field its size as uint32 and its bytes; kNull and no bytes for null
//   B  decompressed bytes
//   P  how many bytes of the file have been read: uint64
//   E  what is wrong with the file, which ends the output
//   D  the end
#include <arrow/api.h>
#include <arrow/io/api.h>
#include <arrow/io/compressed.h>
#include <arrow/ipc/api.h>
#include <arrow/util/compression.h>
#include <arrow/visit_array_inline.h>
#include <parquet/arrow/reader.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <csignal>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace {

constexpr rlim_t kMaxMemoryBytes = rlim_t{2} << 30;
constexpr rlim_t kSecondsPerBatch = 30;        // of processor time
constexpr std::int64_t kBatchBytes = 4 << 20;  // of values that are decoded at a time
constexpr std::int64_t kMaxBatchRows = 8192;
constexpr std::int64_t kBufferBytes = 1 << 20;   // of the file
constexpr std::size_t kFlushBytes = 256u << 10;  // of the output
constexpr std::uint32_t kNull = 0xffffffff;

void check(const arrow::Status& status) {
  if (!status.ok()) throw std::runtime_error(status.message());
}
template <typename T>
T value_of(arrow::Result<T> result) {
  check(result.status());
  return std::move(result).ValueUnsafe();
}

/// A file that needs more processor time for one batch ends the process.
void renew_time_limit() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  rlimit limit{};
  ::getrlimit(RLIMIT_CPU, &limit);
  limit.rlim_cur = static_cast<rlim_t>(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) + kSecondsPerBatch;
  if (limit.rlim_cur < limit.rlim_max) ::setrlimit(RLIMIT_CPU, &limit);
}

void limit_process() {
  // A request to stop that the whole process group receives is for the parent, with which this process ends.
  for (const int signal_number : {SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGUSR2}) std::signal(signal_number, SIG_IGN);
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  rlimit limit{0, 0};
  ::setrlimit(RLIMIT_CORE, &limit);
  ::getrlimit(RLIMIT_AS, &limit);
  limit.rlim_cur = std::min(limit.rlim_max, kMaxMemoryBytes);
  ::setrlimit(RLIMIT_AS, &limit);
  renew_time_limit();
}

// ---- The output -----------------------------------------------------------------------------------------------------

class Output {
 public:
  void message(char kind, std::string_view payload) {
    begin(kind);
    buffer_ += payload;
    end();
  }
  void progress(std::int64_t n_bytes) {
    message('P', {reinterpret_cast<const char*>(&n_bytes), sizeof n_bytes});
    flush();
  }
  void begin(char kind) {
    buffer_ += kind;
    size_at_ = buffer_.size();
    append_size(0);
  }
  void cell(std::optional<std::string_view> value) {
    append_size(value ? checked_size(value->size()) : kNull);
    if (value) buffer_ += *value;
  }
  void end() {
    const std::uint32_t size = checked_size(buffer_.size() - size_at_ - sizeof size);
    std::memcpy(buffer_.data() + size_at_, &size, sizeof size);
    if (buffer_.size() >= kFlushBytes) flush();
  }
  void flush() {
    for (std::string_view rest = buffer_; !rest.empty();) {
      const ssize_t n = ::write(STDOUT_FILENO, rest.data(), rest.size());
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) ::_exit(1);  // the parent does not read any more
      rest.remove_prefix(static_cast<std::size_t>(n));
    }
    buffer_.clear();
  }
  /// Drops a message that is not complete.
  void drop() { buffer_.clear(); }

 private:
  static std::uint32_t checked_size(std::size_t size) {
    if (size >= kNull) throw std::runtime_error("a row has more than 4 GiB");
    return static_cast<std::uint32_t>(size);
  }
  void append_size(std::uint32_t size) { buffer_.append(reinterpret_cast<const char*>(&size), sizeof size); }

  std::string buffer_;
  std::size_t size_at_ = 0;
};

// ---- Values as JSON -------------------------------------------------------------------------------------------------

void append_string(std::string_view text, std::string& out) {
  out += '"';
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      constexpr const char* kDigits = "0123456789abcdef";
      out += "\\u00";
      out += kDigits[static_cast<unsigned char>(c) >> 4];
      out += kDigits[c & 15];
    } else {
      out += c;
    }
  }
  out += '"';
}

void append_json(const std::shared_ptr<arrow::Array>& array, std::int64_t i, std::string& out);

/// Appends value `i` of an array of numbers, lists or other types without members.
struct JsonOf {
  std::int64_t i;
  std::string& out;

  template <typename Array>
  arrow::Status Visit(const Array& array) const {
    using Type = typename Array::TypeClass;
    if constexpr (arrow::is_boolean_type<Type>::value) {
      out += array.Value(i) ? "true" : "false";
    } else if constexpr (std::is_base_of_v<arrow::IntegerType, Type>) {
      append_number(array.Value(i));
    } else if constexpr (std::is_same_v<Type, arrow::FloatType> || std::is_same_v<Type, arrow::DoubleType>) {
      const double value = array.Value(i);
      if (std::isfinite(value))
        append_number(value);
      else
        out += "null";
    } else if constexpr (requires { array.value_offset(i), array.value_length(i), array.values(); }) {
      out += '[';
      for (std::int64_t k = 0; k < array.value_length(i); ++k) {
        if (k > 0) out += ',';
        append_json(array.values(), array.value_offset(i) + k, out);
      }
      out += ']';
    } else {  // times, decimals
      ARROW_ASSIGN_OR_RAISE(const auto scalar, array.GetScalar(i));
      append_string(scalar->ToString(), out);
    }
    return arrow::Status::OK();
  }
  void append_number(auto value) const {
    char digits[32];
    out.append(digits, std::to_chars(digits, digits + sizeof digits, value).ptr);
  }
};

bool is_text(const arrow::DataType& type) {
  using arrow::Type;
  return type.id() == Type::STRING || type.id() == Type::LARGE_STRING || type.id() == Type::STRING_VIEW;
}
bool is_bytes(const arrow::DataType& type) {
  using arrow::Type;
  return type.id() == Type::BINARY || type.id() == Type::LARGE_BINARY || type.id() == Type::BINARY_VIEW ||
         type.id() == Type::FIXED_SIZE_BINARY;
}

/// A text or bytes.
std::string_view view_of(const arrow::Array& array, std::int64_t i) {
  if (const auto* usual = dynamic_cast<const arrow::BinaryArray*>(&array)) return usual->GetView(i);
  if (const auto* large = dynamic_cast<const arrow::LargeBinaryArray*>(&array)) return large->GetView(i);
  if (const auto* view = dynamic_cast<const arrow::BinaryViewArray*>(&array)) return view->GetView(i);
  return dynamic_cast<const arrow::FixedSizeBinaryArray&>(array).GetView(i);
}

/// The array that has the value: that of a dictionary, or the storage of an extension.
std::pair<std::shared_ptr<arrow::Array>, std::int64_t> plain_value(std::shared_ptr<arrow::Array> array,
                                                                   std::int64_t i) {
  if (array->IsNull(i)) return {array, i};
  if (const auto coded = std::dynamic_pointer_cast<arrow::DictionaryArray>(array))
    return plain_value(coded->dictionary(), coded->GetValueIndex(i));
  if (const auto extended = std::dynamic_pointer_cast<arrow::ExtensionArray>(array))
    return plain_value(extended->storage(), i);
  return {array, i};
}

/// Appends a value as JSON. Bytes become null: JSON has none.
void append_json(const std::shared_ptr<arrow::Array>& outer, std::int64_t index, std::string& out) {
  const auto [array, i] = plain_value(outer, index);
  if (array->IsNull(i) || is_bytes(*array->type())) {
    out += "null";
  } else if (is_text(*array->type())) {
    append_string(view_of(*array, i), out);
  } else if (const auto* object = dynamic_cast<const arrow::StructArray*>(array.get())) {
    out += '{';
    for (int k = 0; k < object->num_fields(); ++k) {
      if (k > 0) out += ',';
      append_string(object->type()->field(k)->name(), out);
      out += ':';
      append_json(object->field(k), i, out);
    }
    out += '}';
  } else {
    JsonOf visitor{i, out};
    check(arrow::VisitArrayInline(*array, &visitor));
  }
}

// ---- Fields ---------------------------------------------------------------------------------------------------------

/// A field of a row: a column, or the member of a column of structs ("image.bytes").
struct Field {
  std::vector<int> path;  // the column, then members
  std::shared_ptr<arrow::DataType> type;
  std::string kind;  // empty: there is no such field
};

std::shared_ptr<arrow::DataType> plain_type(std::shared_ptr<arrow::DataType> type) {
  if (type->id() == arrow::Type::DICTIONARY) return static_cast<const arrow::DictionaryType&>(*type).value_type();
  if (type->id() == arrow::Type::EXTENSION) return static_cast<const arrow::ExtensionType&>(*type).storage_type();
  return type;
}

/// Looks the whole name up first, since names of columns may have dots.
bool find_field(const arrow::FieldVector& fields, std::string_view name, Field& out) {
  for (std::size_t k = 0; k < fields.size(); ++k) {
    const std::string& own = fields[k]->name();
    if (!name.starts_with(own)) continue;
    out.path.push_back(static_cast<int>(k));
    out.type = fields[k]->type();
    if (name.size() == own.size()) return true;
    if (name[own.size()] == '.' && out.type->id() == arrow::Type::STRUCT &&
        find_field(out.type->fields(), name.substr(own.size() + 1), out))
      return true;
    out.path.pop_back();
  }
  return false;
}

Field field_named(const arrow::Schema& schema, std::string_view name) {
  Field field;
  if (!find_field(schema.fields(), name, field)) return {};
  const auto type = plain_type(field.type);
  field.kind = is_text(*type) ? "text" : is_bytes(*type) ? "bytes" : "json";
  return field;
}

/// The array of a field. A row is null if one of the structs around it is.
std::shared_ptr<arrow::Array> array_of(const arrow::RecordBatch& batch, const Field& field) {
  std::shared_ptr<arrow::Array> array = batch.column(field.path.front());
  for (std::size_t k = 1; k < field.path.size(); ++k)
    array = value_of(static_cast<const arrow::StructArray&>(*array).GetFlattenedField(field.path[k]));
  return array;
}

void write_cell(const std::shared_ptr<arrow::Array>& outer, std::int64_t index, std::string& scratch, Output& out) {
  const auto [array, i] = plain_value(outer, index);
  if (array->IsNull(i)) return out.cell(std::nullopt);
  if (is_text(*array->type()) || is_bytes(*array->type())) return out.cell(view_of(*array, i));
  scratch.clear();
  append_json(array, i, scratch);
  out.cell(scratch);
}

void list_columns(const arrow::FieldVector& fields, const std::string& prefix, std::string& out) {
  for (const auto& field : fields) {
    const std::string name = prefix + field->name();
    if (field->type()->id() == arrow::Type::STRUCT) {
      list_columns(field->type()->fields(), name + ".", out);
      continue;
    }
    out += out.back() == '[' ? "{\"name\":" : ",{\"name\":";
    append_string(name, out);
    out += ",\"type\":";
    const auto type = plain_type(field->type());
    append_string(is_text(*type) ? "string" : type->name(), out);
    out += '}';
  }
}

void write_columns(const arrow::Schema& schema, const std::vector<Field>& fields, Output& out) {
  std::string json = "{\"columns\":[";
  list_columns(schema.fields(), "", json);
  json += "],\"fields\":[";
  for (const Field& field : fields) json += (&field == fields.data() ? "\"" : ",\"") + field.kind + '"';
  json += "],\"features\":";
  const auto metadata = schema.metadata();
  const int at = metadata ? metadata->FindKey("huggingface") : -1;
  append_string(at < 0 ? "" : metadata->value(at), json);
  out.message('C', json + '}');
}

void write_rows(const arrow::RecordBatch& batch, const std::vector<Field>& fields, std::string& scratch, Output& out) {
  check(batch.ValidateFull());
  std::vector<std::shared_ptr<arrow::Array>> arrays;
  for (const Field& field : fields) arrays.push_back(array_of(batch, field));
  for (std::int64_t i = 0; i < batch.num_rows(); ++i) {
    out.begin('R');
    for (const auto& array : arrays) write_cell(array, i, scratch, out);
    if (fields.empty()) {
      scratch = "{";
      for (int k = 0; k < batch.num_columns(); ++k) {
        if (is_bytes(*plain_type(batch.column(k)->type()))) continue;
        if (scratch.size() > 1) scratch += ',';
        append_string(batch.column_name(k), scratch);
        scratch += ':';
        append_json(batch.column(k), i, scratch);
      }
      scratch += '}';
      out.cell(scratch);
    }
    out.end();
  }
  renew_time_limit();
}

// ---- Files ----------------------------------------------------------------------------------------------------------

std::vector<Field> fields_of(const arrow::Schema& schema, const std::vector<std::string>& names) {
  std::vector<Field> fields;
  for (const std::string& name : names) fields.push_back(field_named(schema, name));
  return fields;
}
bool is_complete(const std::vector<Field>& fields) {
  return std::ranges::none_of(fields, &std::string::empty, &Field::kind);
}

/// The leaves of Parquet's schema that the fields need.
std::vector<int> leaves_of(const parquet::SchemaDescriptor& parquet, const arrow::Schema& schema,
                           const std::vector<Field>& fields) {
  std::vector<int> out;
  for (int leaf = 0; leaf < parquet.num_columns(); ++leaf) {
    const std::string& column = parquet.GetColumnRoot(leaf)->name();
    const auto needs = [&](const Field& field) { return schema.field(field.path.front())->name() == column; };
    if (fields.empty() || std::ranges::any_of(fields, needs)) out.push_back(leaf);
  }
  return out;
}

void read_parquet(const std::shared_ptr<arrow::io::ReadableFile>& file, const std::vector<std::string>& names,
                  Output& out) {
  parquet::ReaderProperties properties = parquet::default_reader_properties();
  properties.enable_buffered_stream();
  properties.set_buffer_size(kBufferBytes);
  parquet::ArrowReaderProperties decoding(false);  // without threads
  decoding.set_pre_buffer(false);
  parquet::arrow::FileReaderBuilder builder;
  check(builder.Open(file, properties));
  builder.properties(decoding);
  const auto reader = value_of(builder.Build());
  const auto metadata = reader->parquet_reader()->metadata();
  std::shared_ptr<arrow::Schema> schema;
  check(reader->GetSchema(&schema));
  std::vector<Field> fields = fields_of(*schema, names);
  write_columns(*schema, fields, out);
  if (!is_complete(fields)) return;

  const std::vector<int> leaves = leaves_of(*metadata->schema(), *schema, fields);
  std::vector<int> row_groups;
  std::int64_t largest_row = 1;
  for (int g = 0; g < metadata->num_row_groups(); ++g) {
    row_groups.push_back(g);
    const auto group = metadata->RowGroup(g);
    std::int64_t n_bytes = 0;
    for (const int leaf : leaves) n_bytes += group->ColumnChunk(leaf)->total_uncompressed_size();
    if (group->num_rows() > 0) largest_row = std::max(largest_row, n_bytes / group->num_rows());
  }
  reader->set_batch_size(std::clamp<std::int64_t>(kBatchBytes / largest_row, 1, kMaxBatchRows));
  const auto batches = value_of(reader->GetRecordBatchReader(row_groups, leaves));
  // The columns that are read, among which the fields are, have other numbers.
  fields = fields_of(*batches->schema(), names);
  std::string scratch;
  const double bytes_per_row = static_cast<double>(value_of(file->GetSize())) /
                               static_cast<double>(std::max<std::int64_t>(1, metadata->num_rows()));
  std::int64_t n_rows = 0;
  while (const auto batch = value_of(batches->Next())) {
    write_rows(*batch, fields, scratch, out);
    n_rows += batch->num_rows();
    out.progress(static_cast<std::int64_t>(bytes_per_row * static_cast<double>(n_rows)));
  }
}

void read_arrow(const std::shared_ptr<arrow::io::ReadableFile>& file, const std::vector<std::string>& names,
                bool is_stream, Output& out) {
  arrow::ipc::IpcReadOptions options;
  options.use_threads = false;
  std::shared_ptr<arrow::ipc::RecordBatchFileReader> whole;
  std::shared_ptr<arrow::ipc::RecordBatchStreamReader> stream;
  if (is_stream)
    stream = value_of(arrow::ipc::RecordBatchStreamReader::Open(file, options));
  else
    whole = value_of(arrow::ipc::RecordBatchFileReader::Open(file, options));
  const auto schema = is_stream ? stream->schema() : whole->schema();
  const std::vector<Field> fields = fields_of(*schema, names);
  write_columns(*schema, fields, out);
  if (!is_complete(fields)) return;
  std::string scratch;
  const auto write = [&](const arrow::RecordBatch& batch, std::int64_t done_bytes) {
    write_rows(batch, fields, scratch, out);
    out.progress(done_bytes);
  };
  if (is_stream) {
    while (const auto batch = value_of(stream->Next())) write(*batch, value_of(file->Tell()));
  } else {
    const std::int64_t n_bytes = value_of(file->GetSize());
    const int n = whole->num_record_batches();
    for (int b = 0; b < n; ++b) write(*value_of(whole->ReadRecordBatch(b)), n_bytes / n * (b + 1));
  }
}

void decompress(const std::shared_ptr<arrow::io::ReadableFile>& file, bool is_gzip, Output& out) {
  const auto codec =
      value_of(arrow::util::Codec::Create(is_gzip ? arrow::Compression::GZIP : arrow::Compression::ZSTD));
  const auto stream = value_of(arrow::io::CompressedInputStream::Make(codec.get(), file));
  while (true) {
    const auto part = value_of(stream->Read(kBufferBytes));
    if (part->size() == 0) return;
    out.message('B', std::string_view(*part));
    out.progress(value_of(file->Tell()));
    renew_time_limit();
  }
}

void read(const std::string& path, const std::string& task, const std::vector<std::string>& names, Output& out) {
  const auto file = value_of(arrow::io::ReadableFile::Open(path));
  const auto head = value_of(file->ReadAt(0, 6));
  check(file->Seek(0));
  const std::string_view begin(*head);
  if (task == "decompress")
    decompress(file, begin.starts_with("\x1f\x8b"), out);
  else if (begin.starts_with("PAR1"))
    read_parquet(file, names, out);
  else
    read_arrow(file, names, begin != "ARROW1", out);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) return 2;
  limit_process();
  Output out;
  try {
    read(argv[1], argv[2], {argv + 3, argv + argc}, out);
    out.message('D', "");
  } catch (const std::exception& error) {
    out.drop();
    const bool is_memory = dynamic_cast<const std::bad_alloc*>(&error) != nullptr;
    out.message('E', is_memory ? "it needs more than 2 GiB of memory" : error.what());
  }
  out.flush();
  return 0;
}

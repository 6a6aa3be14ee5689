// The main thread reads documents, forms batches of them, and writes the ids of the oldest batch; the other threads
// parse and encode batches of about 256 KiB of text (batches.h).
#include "data/text_import.h"

#include <algorithm>
#include <filesystem>
#include <span>

#include "base/model_files.h"
#include "data/batches.h"

namespace lockstep::data {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kBufferBytes = 1u << 20;
constexpr std::size_t kMaxNames = 5;

bool is_json_lines(const fs::path& path) { return path.extension() == ".jsonl"; }

/// The *.txt and *.jsonl files below a folder, sorted by path.
void append_folder(const std::string& folder, std::vector<std::string>& out) {
  const std::vector<std::string> found =
      list_files(folder, [](const fs::path& path) { return path.extension() == ".txt" || is_json_lines(path); });
  require(!found.empty(), ErrorCode::data_source, "{} contains no *.txt and no *.jsonl files", folder);
  out.insert(out.end(), found.begin(), found.end());
}

std::vector<std::string> list_sources(const std::vector<std::string>& sources, SourceFormat format) {
  std::vector<std::string> out;
  for (const std::string& source : sources) {
    std::error_code ignored;
    if (fs::is_directory(source, ignored)) {
      append_folder(source, out);
      continue;
    }
    require(fs::exists(source, ignored) || ignored, ErrorCode::data_source, "there is no text {}", source);
    require(format != SourceFormat::by_name || fs::path(source).extension() != ".json", ErrorCode::data_source,
            "{} has the name of one JSON value; expected a text file, or JSON Lines with one object per line and a "
            "name that ends in .jsonl",
            source);
    out.push_back(source);
  }
  return out;
}

bool is_blank(std::string_view line) { return line.find_first_not_of(" \t\r") == std::string_view::npos; }

/// Throws if the size of the file is not known. Files of /proc, for example, have content although their reported size
/// is 0.
void require_known_size(const InputFile& file) {
  std::byte first{};
  const bool has_more = file.size_bytes() == 0 && file.try_read(0, std::span(&first, 1)) == ReadOutcome::complete;
  require(!has_more, ErrorCode::data_source,
          "{} is no ordinary file: it contains text, but its size is 0; copy it first, for example with `cat {} > "
          "text.txt`",
          file.path(), file.path());
}

/// Throws, with the command that converts the file, if it begins like one of a format that is not text.
void require_text(const InputFile& file) {
  constexpr const char* kFormats[][3] = {
      {"\x1f\x8b", "compressed with gzip", "gzip -dc {} > OUT.jsonl"},
      {"\x28\xb5\x2f\xfd", "compressed with zstd", "zstd -dc {} > OUT.jsonl"},
      {"PAR1", "a Parquet file",
       "python3 -c 'import pandas, sys; pandas.read_parquet(sys.argv[1]).to_json(\"OUT.jsonl\", orient=\"records\", "
       "lines=True)' {}"}};
  std::string head(std::min<std::uint64_t>(4, file.size_bytes()), '\0');
  file.read(0, std::as_writable_bytes(std::span(head)), "its first bytes");
  for (const auto& [begin, name, command] : kFormats)
    require(!head.starts_with(begin), ErrorCode::data_source,
            "{} is {}, which is not read as it is: convert it with {}", file.path(), name,
            fmt::format(fmt::runtime(command), file.path()));
}

struct Batch {
  std::vector<TextDocument> documents;
  std::size_t n_bytes = 0;        // of text
  std::vector<std::int32_t> ids;  // of all documents
  std::vector<std::size_t> ends;  // in ids
  std::uint64_t text_bytes = 0;   // without JSON
};

/// The text of one field of a line of JSON. Values of other fields are skipped and not stored.
std::string field_of(const TextDocument& line, const std::string& field) {
  using Json = nlohmann::json;
  const std::string place = fmt::format("{}:{}", *line.path, line.line);
  int n_found = 0;
  const auto keep_field = [&](int depth, Json::parse_event_t event, Json& parsed) {
    if (event != Json::parse_event_t::key || depth != 1) return true;
    const bool is_field = parsed == field;
    n_found += is_field ? 1 : 0;
    return is_field;
  };
  Json object = parse_line(line.text, place, "JSON Lines have one object per line",
                           [&] { return parse_stoppable<Json>(line.text, keep_field); });
  require(object.is_object(), ErrorCode::data_source,
          "{}: this line is not an object; expected {{\"{}\": \"...\"}} in each line", place, field);
  require(n_found <= 1, ErrorCode::data_source, "{}: the object has the field \"{}\" {} times; remove all but one",
          place, field, n_found);
  const auto found = object.find(field);
  require(found != object.end(), ErrorCode::data_source,
          "{}: the object has no field \"{}\"; --field names the field that contains the text", place, field);
  require(found->is_string(), ErrorCode::data_source, "{}: the field \"{}\": expected a string, found a JSON {}", place,
          field, found->type_name());
  return std::move(found->get_ref<std::string&>());
}

void encode(Batch& batch, const TextEncoder& encoder, const std::string& field) {
  for (TextDocument& document : batch.documents) {
    const std::string text = document.is_json ? field_of(document, field) : std::move(document.text);
    document.text = {};
    batch.text_bytes += text.size();
    encoder.encode(text, batch.ids);
    if (encoder.end_token) batch.ids.push_back(*encoder.end_token);
    batch.ends.push_back(batch.ids.size());
  }
}

class TextImport {
 public:
  TextImport(const TextImportOptions& options, const TextEncoder& encoder, const ImportProgress& progress,
             TextSource source)
      : options_(options),
        encoder_(encoder),
        progress_(progress),
        source_(std::move(source)),
        writer_(options.output, options.replace, encoder.vocabulary_size) {}

  TextImportResult run() {
    process_batches<Batch>(
        options_.threads, [&] { return next_batch(); }, [&](Batch& batch) { encode(batch, encoder_, options_.field); },
        [&](const Batch& batch) { write(batch); });
    check_range();
    writer_.finish({.vocabulary_size = encoder_.vocabulary_size,
                    .tokenizer_hash = encoder_.hash,
                    .end_token = encoder_.end_token,
                    .source = description()},
                   encoder_.json);
    result_.n_documents = writer_.n_documents();
    result_.n_tokens = writer_.n_tokens();
    result_.n_files = source_.paths().size();
    result_.size_bytes = InputFile(options_.output).size_bytes();
    return result_;
  }

 private:
  /// Returns null at the end.
  std::unique_ptr<Batch> next_batch() {
    auto batch = std::make_unique<Batch>();
    while (batch->n_bytes < kBatchBytes && (options_.end == 0 || n_read_ < options_.end)) {
      TextDocument document;
      if (!source_.next(document)) break;
      if (progress_) progress_(static_cast<std::int64_t>(source_.done_bytes()), source_.total_bytes());
      if (n_read_++ < options_.start) continue;
      batch->n_bytes += document.text.size();
      batch->documents.push_back(std::move(document));
    }
    return batch->documents.empty() ? nullptr : std::move(batch);
  }

  void write(const Batch& batch) {
    std::size_t begin = 0;
    for (const std::size_t end : batch.ends) {
      writer_.append(std::span(batch.ids).subspan(begin, end - begin));
      if (end > begin)
        writer_.end_document();
      else
        ++result_.n_empty;
      begin = end;
    }
    result_.text_bytes += batch.text_bytes;
  }

  void check_range() const {
    require(n_read_ > 0, ErrorCode::data_source, "{} contains no documents", fmt::join(options_.sources, ", "));
    require(options_.start < n_read_ && options_.end <= n_read_, ErrorCode::data_range,
            "--start {}{} is not a range of the {} documents of {}", options_.start,
            options_.end > 0 ? fmt::format(" --end {}", options_.end) : "", n_read_, fmt::join(options_.sources, ", "));
  }

  std::string description() const {
    std::string text = source_.description();
    if (options_.start > 0 || options_.end > 0)
      text += fmt::format("; documents {} to {}", options_.start, n_read_ - 1);
    return text;
  }

  const TextImportOptions& options_;
  const TextEncoder& encoder_;
  const ImportProgress& progress_;
  TextSource source_;
  TextFileWriter writer_;
  TextImportResult result_;
  std::int64_t n_read_ = 0;  // documents, also those before `start`
};

}  // namespace

TextSource::TextSource(const std::vector<std::string>& sources, SourceFormat format, std::uint64_t max_line_bytes)
    : format_(format), max_line_bytes_(max_line_bytes), paths_(list_sources(sources, format)) {
  for (const std::string& path : paths_) {
    const InputFile file(path);
    require_known_size(file);
    require_text(file);
    total_bytes_ += file.size_bytes();
  }
  std::vector<std::string> names;
  for (const std::string& source : sources) {
    const fs::path path(source);
    names.push_back((path.has_filename() ? path : path.parent_path()).filename().string());
  }
  const std::size_t n_named = std::min(names.size(), kMaxNames);
  description_ =
      fmt::format("{}", fmt::join(names.begin(), names.begin() + static_cast<std::ptrdiff_t>(n_named), ", "));
  if (n_named < names.size()) description_ += fmt::format(" and {} more", names.size() - n_named);
}

bool TextSource::next(TextDocument& document) {
  while (file_ || open_next_file()) {
    document.is_json = is_json_;
    document.path = path_;
    document.text.clear();
    const bool found = is_json_ ? next_line(document) : whole_file(document);
    if (found) return true;
    file_->require_unchanged();
    file_.reset();
  }
  return false;
}

bool TextSource::open_next_file() {
  if (next_path_ == paths_.size()) return false;
  const std::string& path = paths_[next_path_++];
  file_ = std::make_unique<InputFile>(path);
  path_ = std::make_shared<const std::string>(path);
  is_json_ = format_ == SourceFormat::json_lines || is_json_lines(path);
  offset_ = 0;
  line_ = 0;
  buffer_.clear();
  used_ = 0;
  was_read_ = false;
  return true;
}

bool TextSource::whole_file(TextDocument& document) {
  if (was_read_) return false;
  was_read_ = true;
  const std::uint64_t size_bytes = file_->size_bytes();
  require(size_bytes <= kMaxDocumentBytes, ErrorCode::data_source,
          "{} has {} bytes; a text file is one document, which can have at most {}: split it, or convert it to JSON "
          "Lines with one document per line (.jsonl)",
          file_->path(), size_bytes, kMaxDocumentBytes);
  document.text.reserve(size_bytes);
  for (std::string_view part = buffered(); !part.empty(); part = buffered()) {
    document.text += part;
    used_ = buffer_.size();
  }
  const std::size_t zero = document.text.find('\0');
  require(zero == std::string::npos, ErrorCode::data_source,
          "{} is not text, since byte {} is 0: decompress or convert it; JSON Lines must have a name that ends in "
          ".jsonl",
          file_->path(), zero);
  done_bytes_ += size_bytes;
  return true;
}

bool TextSource::next_line(TextDocument& document) {
  do {
    document.text.clear();
    if (!read_line(document.text)) return false;
    document.line = ++line_;
  } while (is_blank(document.text));
  return true;
}

bool TextSource::read_line(std::string& line) {
  bool found = false;
  for (std::string_view rest = buffered(); !rest.empty(); rest = buffered()) {
    found = true;
    const std::size_t end = rest.find('\n');
    const std::size_t n = std::min(end, rest.size());
    require(line.size() + n <= max_line_bytes_, ErrorCode::data_source,
            "{}:{}: this line has more than {} bytes; --max-line allows longer ones, but a document is held in memory "
            "as a whole, which takes up to 50 times as much",
            file_->path(), line_ + 1, max_line_bytes_);
    line.append(rest.substr(0, n));
    const std::size_t n_used = end == std::string_view::npos ? n : n + 1;
    used_ += n_used;
    done_bytes_ += n_used;
    if (end != std::string_view::npos) break;
  }
  return found;
}

std::string_view TextSource::buffered() {
  if (used_ == buffer_.size()) {
    throw_if_stopped();
    const std::uint64_t n = std::min<std::uint64_t>(kBufferBytes, file_->size_bytes() - offset_);
    buffer_.resize(n);
    used_ = 0;
    file_->read(offset_, std::as_writable_bytes(std::span(buffer_)), "the text");
    offset_ += n;
  }
  return std::string_view(buffer_).substr(used_);
}

TextImportResult import_text(const TextImportOptions& options, const TextEncoder& encoder,
                             const ImportProgress& progress) {
  require(options.end == 0 || options.start < options.end, ErrorCode::data_range,
          "--start {} --end {}: the first document must be before the end", options.start, options.end);
  TextSource source(options.sources, SourceFormat::by_name, options.max_line_bytes);
  require_no_input(options.output, source.paths());
  require_no_input(options.output, std::vector{encoder.path});
  return TextImport(options, encoder, progress, std::move(source)).run();
}

}  // namespace lockstep::data

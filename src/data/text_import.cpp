// The main thread reads documents, forms batches of them, and writes the ids of the oldest batch; the other threads
// parse and encode batches of about 256 KiB of text (batches.h).
#include "data/text_import.h"

#include <algorithm>
#include <filesystem>
#include <functional>
#include <span>

#include "base/hub_cache.h"
#include "base/model_files.h"
#include "data/batches.h"

namespace lockstep::data {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMaxNames = 5;

bool is_json_lines(const ListedFile& file) {
  const fs::path path(file.path);
  const std::string extension = (file.is_compressed ? path.stem() : path).extension().string();
  return extension == ".jsonl" || (file.is_compressed && extension == ".json");
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

void require_text(const std::string& text, const std::string& path) {
  const std::size_t zero = text.find('\0');
  require(zero == std::string::npos, ErrorCode::data_source,
          "{} is not text, since byte {} is 0: decompress or convert it; JSON Lines must have a name that ends in "
          ".jsonl",
          path, zero);
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
  const std::string place = line.place();
  int n_found = 0;
  const std::string outer = field.substr(0, field.find('.'));  // which may have the field as a member
  const auto keep_field = [&](int depth, Json::parse_event_t event, Json& parsed) {
    if (event != Json::parse_event_t::key || depth != 1) return true;
    n_found += parsed == field ? 1 : 0;
    return parsed == field || parsed == outer;
  };
  Json object = parse_line(line.text, place, "JSON Lines have one object per line",
                           [&] { return parse_stoppable<Json>(line.text, keep_field); });
  require(object.is_object(), ErrorCode::data_source,
          "{}: this line is not an object; expected {{\"{}\": \"...\"}} in each line", place, field);
  require(n_found <= 1, ErrorCode::data_source, "{}: the object has the field \"{}\" {} times; remove all but one",
          place, field, n_found);
  Json* found = find_field(object, field);
  require(found != nullptr, ErrorCode::data_source,
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
    result_.n_empty += source_.n_null();
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

TextSource::TextSource(const std::vector<std::string>& sources, TextSourceOptions options)
    : options_(std::move(options)) {
  std::string split;
  for (const std::string& source : sources) {
    SourceFiles listed = list_source(source, options_.split);
    files_.insert(files_.end(), listed.files.begin(), listed.files.end());
    if (!listed.split.empty()) split = listed.split;
  }
  for (const ListedFile& listed : files_) {
    require(options_.format != SourceFormat::by_name || fs::path(listed.path).extension() != ".json" ||
                listed.is_compressed,
            ErrorCode::data_source,
            "{} has the name of one JSON value; expected a text file, or JSON Lines with one object per line and a "
            "name that ends in .jsonl",
            listed.path);
    const InputFile file(listed.path);
    require_known_size(file);
    total_bytes_ += file.size_bytes();
    paths_.push_back(listed.path);
  }
  std::vector<std::string> names;
  for (const std::string& source : sources) names.push_back(source_name(source));
  const std::size_t n_named = std::min(names.size(), kMaxNames);
  description_ =
      fmt::format("{}", fmt::join(names.begin(), names.begin() + static_cast<std::ptrdiff_t>(n_named), ", "));
  if (n_named < names.size()) description_ += fmt::format(" and {} more", names.size() - n_named);
  if (!split.empty()) description_ += "; split " + split;
}

bool TextSource::next(TextDocument& document) {
  while (file_ || open_next_file()) {
    document.is_json = is_json_;
    document.is_row = is_row_;
    document.path = path_;
    document.text.clear();
    if (scratch_   ? next_member(document)
        : table_   ? next_row(document)
        : is_json_ ? next_line(document)
                   : whole_file(document))
      return true;
    close_file();
  }
  return false;
}

std::uint64_t TextSource::done_bytes() const {
  if (!members_.empty()) return done_bytes_ + file_->size_bytes() * next_member_ / members_.size();
  return done_bytes_ + (table_ ? table_->done_bytes() : bytes_ ? bytes_->done_bytes() : 0);
}

bool TextSource::open_next_file() {
  if (next_file_ == files_.size()) return false;
  const ListedFile& listed = files_[next_file_++];
  file_ = std::make_unique<InputFile>(listed.path);
  path_ = std::make_shared<const std::string>(listed.path);
  is_row_ = listed.table == TableFormat::parquet || listed.table == TableFormat::arrow;
  if (listed.is_archive) {
    const auto has = [](const std::string& name, const char* extension) {
      return fs::path(name).extension() == extension && !fs::path(name).filename().string().starts_with('.');
    };
    const bool may_be_text = options_.format == SourceFormat::by_name;
    scratch_ = std::make_unique<Scratch>(options_.output);
    members_ = read_archive(listed.path, *scratch_, [&](const std::string& name) {
      return has(name, ".json") || (may_be_text && has(name, ".txt"));
    });
    const auto is_text = [&](const ArchiveMember& member) { return has(member.name, ".txt"); };
    is_json_ = std::ranges::none_of(members_, is_text);
    if (!is_json_) std::erase_if(members_, std::not_fn(is_text));
    next_member_ = 0;
    return true;
  }
  if (listed.table != TableFormat::none) {
    is_json_ = options_.field.empty();
    TableRequest request{.fields = {}, .max_row_bytes = options_.max_line_bytes};
    if (!is_json_) request.fields = {options_.field};
    table_ = open_table(listed.path, listed.table, request);
    require(is_json_ || table_->is_plain(0), ErrorCode::data_source,
            "{}: the column \"{}\" is not text; it has {}: choose one with --field", listed.path, options_.field,
            table_->description().list_of_columns());
    return true;
  }
  is_json_ = options_.format == SourceFormat::json_lines || is_json_lines(listed);
  bytes_ = std::make_unique<ByteSource>(listed.path);
  line_ = 0;
  was_read_ = false;
  return true;
}

void TextSource::close_file() {
  file_->require_unchanged();
  done_bytes_ += file_->size_bytes();
  table_.reset();
  bytes_.reset();
  scratch_.reset();
  members_.clear();
  file_.reset();
}

bool TextSource::whole_file(TextDocument& document) {
  if (was_read_) return false;
  was_read_ = true;
  const auto require_short = [&](std::uint64_t n_bytes) {
    require(n_bytes <= kMaxDocumentBytes, ErrorCode::data_source,
            "{} has {} bytes; a text file is one document, which can have at most {}: split it, or convert it to JSON "
            "Lines with one document per line (.jsonl)",
            file_->path(), n_bytes, kMaxDocumentBytes);
  };
  require_short(file_->size_bytes());
  document.text.reserve(file_->size_bytes());
  for (std::string_view part = bytes_->buffered(); !part.empty(); part = bytes_->buffered()) {
    require_short(document.text.size() + part.size());
    document.text += part;
    bytes_->use(part.size());
  }
  require_text(document.text, file_->path());
  return true;
}

bool TextSource::next_member(TextDocument& document) {
  throw_if_stopped();
  if (next_member_ == members_.size()) return false;
  const ArchiveMember& member = members_[next_member_++];
  document.path = std::make_shared<const std::string>(fmt::format("{}: {}", *path_, member.name));
  document.line = 1;
  require(member.place.size_bytes <= kMaxDocumentBytes, ErrorCode::data_source,
          "{} has {} bytes; a document can have at most {}", *document.path, member.place.size_bytes,
          kMaxDocumentBytes);
  document.text = member.text();
  if (!is_json_) require_text(document.text, *document.path);
  return true;
}

bool TextSource::next_line(TextDocument& document) {
  do {
    document.text.clear();
    if (!bytes_->read_line(document.text, options_.max_line_bytes, line_ + 1)) return false;
    if (document.text.ends_with('\n')) document.text.pop_back();
    document.line = ++line_;
  } while (is_blank(document.text));
  return true;
}

bool TextSource::next_row(TextDocument& document) {
  while (table_->next(row_)) {
    document.line = table_->number();
    if (row_.front()) {
      document.text = std::move(*row_.front());
      return true;
    }
    ++n_null_;
  }
  return false;
}

TextImportResult import_text(const TextImportOptions& options, const TextEncoder& encoder,
                             const ImportProgress& progress) {
  require(options.end == 0 || options.start < options.end, ErrorCode::data_range,
          "--start {} --end {}: the first document must be before the end", options.start, options.end);
  TextSource source(options.sources, {.split = options.split,
                                      .field = options.field,
                                      .max_line_bytes = options.max_line_bytes,
                                      .output = options.output});
  require_no_input(options.output, source.paths());
  require_no_input(options.output, std::vector{encoder.path});
  return TextImport(options, encoder, progress, std::move(source)).run();
}

}  // namespace lockstep::data

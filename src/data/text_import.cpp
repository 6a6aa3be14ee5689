// The main thread reads documents, forms batches of them, and writes the ids of the oldest batch; the other threads
// parse and encode batches of about 256 KiB of text (batches.h).
#include "data/text_import.h"

#include <memory>
#include <nlohmann/json.hpp>

#include "base/input_check.h"
#include "data/batches.h"
#include "data/stoppable_json.h"
#include "data/text_source.h"
#include "lockstep/error.h"

namespace lockstep::data {
namespace {

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
  const auto place = [&] { return fmt::format("{}:{}", *line.path, line.line); };
  const std::size_t zero = line.text.find('\0');  // where the parser would stop
  require(zero == std::string::npos, ErrorCode::data_source, "{}: this line is not valid JSON: its byte {} is 0",
          place(), zero);
  Json object;
  int n_found = 0;
  try {
    object = parse_stoppable<Json>(line.text, [&](int depth, Json::parse_event_t event, Json& parsed) {
      if (event != Json::parse_event_t::key || depth != 1) return true;
      const bool is_field = parsed == field;
      n_found += is_field ? 1 : 0;
      return is_field;
    });
  } catch (const Json::exception& error) {
    const std::string_view what = error.what();
    const std::size_t colon = what.find("column ");
    fail(ErrorCode::data_source, "{}: this line is not valid JSON ({}); JSON Lines have one object per line", place(),
         colon == std::string_view::npos ? what : what.substr(colon));
  }
  require(object.is_object(), ErrorCode::data_source,
          "{}: this line is not an object; expected {{\"{}\": \"...\"}} in each line", place(), field);
  require(n_found <= 1, ErrorCode::data_source, "{}: the object has the field \"{}\" {} times; remove all but one",
          place(), field, n_found);
  const auto found = object.find(field);
  require(found != object.end(), ErrorCode::data_source,
          "{}: the object has no field \"{}\"; --field names the field that contains the text", place(), field);
  require(found->is_string(), ErrorCode::data_source, "{}: the field \"{}\": expected a string, found a JSON {}",
          place(), field, found->type_name());
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
  TextImport(const TextImportOptions& options, const TextEncoder& encoder, const ImportProgress& progress)
      : options_(options),
        encoder_(encoder),
        progress_(progress),
        source_(options.sources, SourceFormat::by_name, options.max_line_bytes),
        writer_(checked_output(), options.replace, encoder.vocabulary_size) {}

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
  /// The path of the output. Throws if it is one of the inputs.
  const std::string& checked_output() const {
    std::vector<std::string> inputs = source_.paths();
    inputs.push_back(encoder_.path);
    require_no_input(options_.output, inputs);
    return options_.output;
  }

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

TextImportResult import_text(const TextImportOptions& options, const TextEncoder& encoder,
                             const ImportProgress& progress) {
  require(options.end == 0 || options.start < options.end, ErrorCode::data_range,
          "--start {} --end {}: the first document must be before the end", options.start, options.end);
  return TextImport(options, encoder, progress).run();
}

}  // namespace lockstep::data

// The main thread reads documents, forms batches of them, and writes the ids of the oldest batch; the other threads
// parse and encode batches. A batch has about 256 KiB of text, and a few batches per thread are under way.
#include "data/text_import.h"

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/input_check.h"
#include "data/text_source.h"
#include "lockstep/error.h"

namespace lockstep::data {
namespace {

constexpr std::size_t kBatchBytes = 256u << 10;
constexpr std::size_t kBatchesPerThread = 4;
/// Text in batches under way, besides one batch that may be larger.
constexpr std::size_t kMaxBytesUnderWay = 64u << 20;

struct Batch {
  std::vector<TextDocument> documents;
  std::size_t n_bytes = 0;        // of text
  std::vector<std::int32_t> ids;  // of all documents
  std::vector<std::size_t> ends;  // in ids
  std::uint64_t text_bytes = 0;   // without JSON
  bool is_done = false;
  std::exception_ptr error;
};

/// The text of one field of a line of JSON. Values of other fields are skipped and not stored.
std::string field_of(const TextDocument& line, const std::string& field) {
  using Json = nlohmann::json;
  const auto place = [&] { return fmt::format("{}:{}", *line.path, line.line); };
  const std::size_t zero = line.text.find('\0');  // at which the parser would end
  require(zero == std::string::npos, ErrorCode::data_source, "{}: this line is not valid JSON: its byte {} is 0",
          place(), zero);
  Json object;
  int n_found = 0;
  try {
    object = Json::parse(line.text, [&](int depth, Json::parse_event_t event, Json& parsed) {
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
  require(found->is_string(), ErrorCode::data_source, "{}: the field \"{}\" is of the type {}; expected a string",
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

/// Threads that encode batches. Batches are taken from it in the order in which they were given to it.
class Encoders {
 public:
  Encoders(const TextEncoder& encoder, const std::string& field, int n_threads) : encoder_(encoder), field_(field) {
    try {
      for (int t = 0; t < n_threads; ++t) threads_.emplace_back([this] { run(); });
    } catch (...) {
      stop();
      throw;
    }
  }
  ~Encoders() { stop(); }

  std::size_t n_batches() const { return batches_.size(); }
  std::size_t n_bytes() const { return n_bytes_; }

  void give(std::unique_ptr<Batch> batch) {
    n_bytes_ += batch->n_bytes;
    {
      const std::lock_guard lock(mutex_);
      waiting_.push_back(batch.get());
    }
    batches_.push_back(std::move(batch));
    work_.notify_one();
  }
  /// The oldest batch, when it is encoded. Throws what its encoding threw.
  std::unique_ptr<Batch> take() {
    std::unique_ptr<Batch> batch = std::move(batches_.front());
    batches_.pop_front();
    n_bytes_ -= batch->n_bytes;
    {
      std::unique_lock lock(mutex_);
      done_.wait(lock, [&] { return batch->is_done; });
    }
    if (batch->error) std::rethrow_exception(batch->error);
    return batch;
  }

 private:
  void run() {
    std::unique_lock lock(mutex_);
    while (true) {
      work_.wait(lock, [&] { return stopping_ || !waiting_.empty(); });
      if (stopping_) return;
      Batch& batch = *waiting_.front();
      waiting_.pop_front();
      lock.unlock();
      try {
        encode(batch, encoder_, field_);
      } catch (...) {
        batch.error = std::current_exception();
      }
      lock.lock();
      batch.is_done = true;
      done_.notify_one();
    }
  }
  void stop() {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    work_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }

  const TextEncoder& encoder_;
  const std::string& field_;
  std::deque<std::unique_ptr<Batch>> batches_;  // only of the main thread
  std::size_t n_bytes_ = 0;
  std::mutex mutex_;
  std::condition_variable work_, done_;
  std::deque<Batch*> waiting_;
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

class TextImport {
 public:
  TextImport(const TextImportOptions& options, const TextEncoder& encoder, const ImportProgress& progress)
      : options_(options),
        encoder_(encoder),
        progress_(progress),
        source_(options.sources),
        writer_(checked_output(), options.replace, encoder.vocabulary_size) {}

  TextImportResult run() {
    const int n_threads =
        options_.threads > 0 ? options_.threads : static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
    Encoders encoders(encoder_, options_.field, n_threads);
    const std::size_t most = kBatchesPerThread * static_cast<std::size_t>(n_threads);
    while (auto batch = next_batch()) {
      while (encoders.n_batches() > 0 &&
             (encoders.n_batches() >= most || encoders.n_bytes() + batch->n_bytes > kMaxBytesUnderWay))
        write(*encoders.take());
      encoders.give(std::move(batch));
    }
    while (encoders.n_batches() > 0) write(*encoders.take());
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
  /// The output, which is none of the inputs.
  const std::string& checked_output() const {
    std::vector<std::string> inputs = source_.paths();
    inputs.push_back(encoder_.path);
    require_no_input(options_.output, inputs);
    return options_.output;
  }

  /// Null at the end.
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

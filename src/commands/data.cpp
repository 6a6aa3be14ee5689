// lockstep data info | verify: describes and verifies data sets. `data import` is in data_import.cpp,
// and `data show` in data_show.cpp.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>

#include "base/numbers.h"
#include "base/progress_bar.h"
#include "commands/commands.h"
#include "commands/report.h"
#include "data/image_file.h"
#include "data/text_file.h"
#include "lockstep/error.h"
#include "run/metrics.h"

namespace lockstep::commands {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::size_t kMaxNames = 20;

struct FileArguments {
  std::string file, json;
};

/// "cat, dog", "ant, bee, ... (1000)"
std::string names_text(const std::vector<std::string>& names) {
  std::vector<std::string> first;
  for (const std::string& name : std::span(names).first(std::min(names.size(), kMaxNames)))
    first.push_back(printable(name, kMaxColumnBytes));
  const std::string text = fmt::format("{}", fmt::join(first, ", "));
  return first.size() == names.size() ? text : fmt::format("{}, ... ({}; --json lists all)", text, names.size());
}

/// "64 x 64 (height, width)", "heights 60 to 500, widths 80 to 375"
std::string sizes_text(const data::EncodedIndex& index) {
  if (index.min_height == index.max_height && index.min_width == index.max_width)
    return fmt::format("{} x {} (height, width)", index.min_height, index.min_width);
  return fmt::format("heights {} to {}, widths {} to {}", index.min_height, index.max_height, index.min_width,
                     index.max_width);
}

/// "JPEG and PNG" of "jpeg, png"
std::string format_names(const std::string& formats) {
  if (formats == data::kPixels) return "decoded";
  return formats == "jpeg" ? "JPEG" : formats == "png" ? "PNG" : "JPEG and PNG";
}

/// "contiguous from byte 4096", "295 chunks of 510 KiB, 170 images each"
std::string storage_text(const data::ImageFile& layout) {
  const data::StoredBytes& images = layout.images;
  if (!images.chunked()) return fmt::format("contiguous from byte {}", images.offsets[0]);
  const double kib = static_cast<double>(images.chunk_bytes) / 1024;
  const std::string each =
      layout.encoded ? "" : fmt::format(", {} images each", images.chunk_bytes / layout.info.image_bytes());
  return fmt::format("{} chunks of {:.5g} KiB{}", images.offsets.size(), kib, each);
}

/// The lines of a description: "  name       value".
class Lines {
 public:
  explicit Lines(const std::string& title) : text_(title + '\n') {}
  void add(const char* name, const std::string& value) {
    if (!value.empty()) text_ += fmt::format("  {:<10} {}\n", name, value);
  }
  void add_file(const data::InputFile& file, bool has_user_block) {
    add("size", fmt::format("{} ({} bytes)", size_text(file.size_bytes()), file.size_bytes()));
    add("user block", has_user_block ? "yes: the length of the file and its metadata match it"
                                     : "no: another program wrote the file");
  }
  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

/// Adds a description of the answers to the object. Returns the number of their tokens.
std::int64_t describe_answers(const data::InputFile& file, const data::TextFile& layout, Json& object) {
  data::check_answers(file, layout);
  std::uint64_t n = 0;
  for (const data::TokenRange& answer : data::read_answers(file, layout, {0, std::uint64_t(layout.n_tokens)}))
    n += answer.end - answer.begin;
  object["answer_tokens"] = n;
  object["answers_xxh3"] = layout.answers_xxh3;
  object["chat_template"] = layout.description.chat_template;
  object["chat_template_source"] = layout.description.chat_template_source;
  object["special_tokens"] = layout.description.special_tokens;
  return static_cast<std::int64_t>(n);
}

void describe_text(const FileArguments& arguments, const data::InputFile& file) {
  const data::TextFile layout = data::open_text_file(file);
  const data::TextDescription& text = layout.description;
  const std::int64_t longest = data::check_documents(file, layout);
  const double mean = static_cast<double>(layout.n_tokens) / static_cast<double>(layout.n_documents);
  Json object = {{"path", file.path()},
                 {"format", data::kTextFormat},
                 {"documents", layout.n_documents},
                 {"tokens", layout.n_tokens},
                 {"longest_document", longest},
                 {"mean_document", mean},
                 {"vocabulary_size", text.vocabulary_size},
                 {"tokenizer_hash", text.tokenizer_hash},
                 {"tokenizer_bytes", layout.tokenizer.size_bytes},
                 {"end_token", nullptr},
                 {"token_bytes", layout.token_bytes},
                 {"source", text.source},
                 {"size_bytes", file.size_bytes()},
                 {"tokens_offset_bytes", layout.tokens.offset},
                 {"documents_xxh3", layout.documents_xxh3},
                 {"answers", layout.n_answers},
                 {"has_user_block", layout.has_user_block}};
  if (text.end_token) object["end_token"] = *text.end_token;
  Lines lines(file.path());
  lines.add("documents", fmt::format("{}{}, of {:.1f} tokens on average, the longest of {}", layout.n_documents,
                                     layout.has_answers() ? " conversations" : "", mean, longest));
  lines.add("tokens", fmt::format("{} uint{}", layout.n_tokens, 8 * layout.token_bytes));
  if (layout.has_answers()) {
    const std::int64_t n = describe_answers(file, layout, object);
    lines.add("answers", fmt::format("{} with {} tokens, which count towards the loss ({:.1f} %)", layout.n_answers, n,
                                     100 * static_cast<double>(n) / static_cast<double>(layout.n_tokens)));
    lines.add("template", printable(text.chat_template_source));
  }
  lines.add("vocabulary", fmt::format("{} tokens", text.vocabulary_size));
  lines.add("tokenizer", fmt::format("hash {} ({} bytes)", text.tokenizer_hash, layout.tokenizer.size_bytes));
  lines.add("end token", text.end_token         ? fmt::format("{}", *text.end_token)
                         : layout.has_answers() ? "that of the template"
                                                : "none: documents follow each other without one");
  lines.add("source", text.source);
  lines.add_file(file, layout.has_user_block);
  report(arguments.json, object, lines.text());
}

void describe_images(const FileArguments& arguments, const data::InputFile& file) {
  const data::ImageFile layout = data::open_image_file(file);
  const data::ImageSetInfo& info = layout.info;
  std::vector<std::int64_t> per_class(static_cast<std::size_t>(info.classes), 0);
  for (const std::int32_t label : data::read_labels(file, layout)) ++per_class[static_cast<std::size_t>(label)];
  const Json object = {
      {"path", info.path},
      {"format", "lockstep-images"},
      {"split", info.split},
      {"samples", info.n_samples},
      {"height", info.height},
      {"width", info.width},
      {"encoding", layout.encoded && !layout.encoded->is_decoded ? layout.encoded->formats : "decoded"},
      {"channels", info.channels},
      {"classes", info.classes},
      {"class_names", info.class_names},
      {"samples_per_class", per_class},
      {"mean", info.mean},
      {"std", info.stddev},
      {"source", layout.source},
      {"size_bytes", file.size_bytes()},
      {"images_offset_bytes", layout.images.offsets[0]},
      {"chunk_bytes", layout.images.chunked() ? layout.images.chunk_bytes : 0},
      {"chunks", layout.images.chunked() ? layout.images.offsets.size() : 0},
      {"images_xxh3", layout.images_xxh3},
      {"labels_xxh3", layout.labels_xxh3},
      {"has_user_block", layout.has_user_block},
      {"sealed", layout.has_user_block}};  // its name until release 0.1; to be removed in the next release
  Lines lines(info.path);
  lines.add("split", info.split);
  lines.add("samples",
            layout.encoded
                ? fmt::format("{} {} images, {}{}", info.n_samples, format_names(layout.encoded->formats),
                              sizes_text(*layout.encoded), info.channels == 1 ? ", 1 channel" : "")
                : fmt::format("{} images, {} uint8 (height, width, channels)", info.n_samples, shape_text(info)));
  lines.add("classes", fmt::format("{}, {}", info.classes, data::per_class_text(per_class)));
  lines.add("names", names_text(info.class_names));
  lines.add("mean", fmt::format("{:.6f}", fmt::join(info.mean, ", ")));
  lines.add("std", fmt::format("{:.6f}", fmt::join(info.stddev, ", ")));
  lines.add("source", layout.source);
  lines.add("storage", storage_text(layout));
  lines.add_file(file, layout.has_user_block);
  report(arguments.json, object, lines.text());
}

int run_info(const FileArguments& arguments) {
  check_outputs({arguments.json}, {arguments.file});
  const data::InputFile file(arguments.file);
  if (data::is_text_file(file))
    describe_text(arguments, file);
  else
    describe_images(arguments, file);
  return kExitDone;
}

/// Verifies with a progress bar, and tells what was checked: bytes of these parts.
data::Verification verify(const data::InputFile& file, bool is_text, std::uint64_t& checked_bytes, std::string& parts) {
  std::unique_ptr<ProgressBar> bar;
  const auto begin = [&](std::uint64_t total_bytes) {
    bar = std::make_unique<ProgressBar>("verify", static_cast<std::int64_t>(total_bytes), true);
  };
  const auto progress = [&](std::uint64_t bytes) {
    checked_bytes += bytes;
    bar->update(static_cast<std::int64_t>(checked_bytes), "");
  };
  if (is_text) {
    const data::TextFile layout = data::open_text_file(file);
    parts = layout.has_answers() ? "tokens, documents and answers" : "tokens and documents";
    begin(layout.tokens.size_bytes + layout.documents.size_bytes + layout.answers.size_bytes);
    return data::verify_text_file(file, layout, progress);
  }
  const data::ImageFile layout = data::open_image_file(file);
  parts = "images and labels";
  begin(layout.images.size_bytes + layout.labels.size_bytes);
  return data::verify_image_file(file, layout, progress);
}

int run_verify(const FileArguments& arguments) {
  check_outputs({arguments.json}, {arguments.file});
  data::Verification found;
  std::uint64_t checked_bytes = 0;
  std::string parts;
  const data::InputFile file(arguments.file);
  const bool is_text = data::is_text_file(file);
  try {
    found = verify(file, is_text, checked_bytes, parts);
  } catch (const Error& error) {
    // A file that is not a data set cannot be verified. A data set that cannot be opened is damaged.
    if (error.code() == ErrorCode::data_format) throw;
    found.damaged.emplace_back(error.what());
  }
  const bool good = found.damaged.empty();
  std::string text;
  for (const std::string& sentence : found.damaged) text += sentence + '\n';
  if (found.is_valid())
    text +=
        fmt::format("{} is valid: {} of {} match their checksums.\n", arguments.file, size_text(checked_bytes), parts);
  else
    text += good ? fmt::format("{}: nothing that can be checked is damaged.\n", arguments.file)
                 : fmt::format("{} is damaged: copy or import it again.\n", arguments.file);
  for (const std::string& what : found.unchecked) text += fmt::format("  not checked: {}\n", what);
  report(arguments.json,
         {{"path", arguments.file},
          {"good", good},
          {"damaged", found.damaged},
          {"unchecked", found.unchecked},
          {"checked_bytes", checked_bytes}},
         text);
  return good ? kExitDone : kExitFailed;
}

void add_file_command(CLI::App& data, Run& run, const std::string& name, const std::string& description,
                      int (*command)(const FileArguments&)) {
  CLI::App* app = data.add_subcommand(name, description);
  const auto arguments = std::make_shared<FileArguments>();
  add_value(*app, "file", "FILE", arguments->file, "The data set")->required();
  add_json(*app, arguments->json);
  set_run(*app, run, [arguments, command] { return command(*arguments); });
}

}  // namespace

void add_data(CLI::App& app, Run& run) {
  CLI::App* data = app.add_subcommand("data", "Create, describe, verify and show data sets; encode text");
  data->require_subcommand(1);
  add_data_import(*data, run);
  add_file_command(*data, run, "info", "Print what a data set contains", run_info);
  add_file_command(*data, run, "verify", "Verify the checksums of a data set; exit status 1 if it is damaged",
                   run_verify);
  add_data_show(*data, run);
  add_encode_and_decode(*data, run);
}

}  // namespace lockstep::commands

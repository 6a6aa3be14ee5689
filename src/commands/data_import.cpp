// lockstep data import KIND: creates data sets.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "base/file.h"
#include "base/hub_cache.h"
#include "base/numbers.h"
#include "base/progress_bar.h"
#include "base/signals.h"
#include "commands/commands.h"
#include "commands/job.h"
#include "commands/report.h"

#include "data/chat_import.h"
#include "data/image_file.h"
#include "data/import.h"
#include "data/text_import.h"
#include "lockstep/error.h"
#include "lockstep/log.h"
#include "lockstep/philox.h"
#include "run/metrics.h"
#include "text/chat_template.h"
#include "text/conversation_encoder.h"
#include "text/tokenizer.h"

namespace lockstep::commands {
namespace {

/// Otherwise --force could replace a file of another kind that was given as the output by mistake.
void require_data_set_name(const std::string& output) {
  require(output.ends_with(".h5") || output.ends_with(".hdf5"), ErrorCode::usage,
          "the name of the data set to create must end in .h5, found {}", output);
}

/// Shows the progress of an import, and ends it if a signal asks to stop. In that case the output is as it was before.
template <typename Import>
auto run_with_bar(Import import) {
  std::unique_ptr<ProgressBar> bar;
  return import(data::ImportProgress([&](std::int64_t done, std::int64_t total) {
    throw_if_stopped();
    if (!bar) bar = std::make_unique<ProgressBar>("import", total, true, WithoutTerminal::lines);
    bar->update(done, "");
  }));
}

/// A source that is named as on the Hugging Face Hub becomes its folder in the local cache.
std::string find_source(const std::string& given) {
  std::string found = find_dataset(given);
  const std::string remedy = is_there(found) ? "" : hub_remedy(given, HubKind::dataset);
  require(remedy.empty(), ErrorCode::data_source, "there is no {}{}", given, remedy);
  return found;
}

// ---- Images ---------------------------------------------------------------------------------------------------------

constexpr int kMaxShortSide = 8192;  // pixels

using ImageImport = data::ImportResult (*)(const data::ImageFolderOptions&, const data::ImportProgress&);

struct ImageArguments {
  data::ImageFolderOptions options;
  std::optional<std::uint64_t> chunk_bytes;
  std::string store = "auto";
  std::string statistics_from;
};

data::ImageStorage storage_of(const std::string& word) {
  if (word == "decoded") return data::ImageStorage::decoded;
  return word == "auto" ? data::ImageStorage::automatic : data::ImageStorage::encoded;
}

void import_images(ImageArguments arguments, ImageImport import) {
  data::ImageFolderOptions& options = arguments.options;
  require_data_set_name(options.output);
  options.source = find_source(options.source);
  options.storage = storage_of(arguments.store);
  data::Placement& placement = options.placement;
  placement.chunk_bytes = arguments.chunk_bytes.value_or(std::max(placement.chunk_bytes, placement.alignment_bytes));
  if (!arguments.statistics_from.empty()) {
    check_outputs({options.output}, {arguments.statistics_from});
    const data::ImageFile train = data::open_image_file(data::InputFile(arguments.statistics_from));
    options.mean = train.info.mean;
    options.stddev = train.info.stddev;
    options.class_names = train.info.class_names;
  }
  const data::ImportResult result =
      run_with_bar([&](const data::ImportProgress& progress) { return import(options, progress); });
  for (const std::string& sentence : result.skipped) log::warning("Skipped: {}", sentence);
  if (!result.missing.empty()) log::warning("{}", result.missing);
  const data::ImageSetInfo& info = result.info;
  for (std::size_t i = 0; i < result.samples_per_class.size() && i < info.class_names.size(); ++i)
    if (result.samples_per_class[i] == 0)
      log::warning("class {} has no image that can be decoded", info.class_names[i]);
  print_text("Imported {} {} images of {} in {} classes ({}) from {} into {} ({}).\n", info.n_samples, info.split,
             shape_text(info), info.classes, data::per_class_text(result.samples_per_class),
             fmt::join(result.files, ", "), options.output, size_text(result.size_bytes));
  if (!result.channels.empty()) print_text("Channels: {}.\n", result.channels);
  if (!result.storage.empty()) print_text("Stored: {}.\n", result.storage);
  if (!result.skipped.empty())
    print_text("Skipped: {} that cannot be decoded.\n", counted(result.skipped.size(), "image"));
}

/// Which images are imported, and how they are described.
void add_selection_options(CLI::App& app, ImageArguments& arguments) {
  data::ImageFolderOptions& options = arguments.options;
  CLI::Option* per_class = add_number(app, "--per-class", options.per_class, 1, kMaxSamples,
                                      "Import only the first N samples of each class");
  add_number(app, "--limit", options.limit, 1, kMaxSamples, "Import only the first N samples")->excludes(per_class);
  CLI::Option* mean = app.add_option("--mean", options.mean, "Means to store, for values in [0, 1]")
                          ->delimiter(',')
                          ->allow_extra_args(false)
                          ->type_name("R,G,B|GREY");
  CLI::Option* stddev = app.add_option("--std", options.stddev, "Standard deviations to store, for values in [0, 1]")
                            ->delimiter(',')
                            ->allow_extra_args(false)
                            ->type_name("R,G,B|GREY");
  add_value(app, "--statistics-from", "TRAIN.h5", arguments.statistics_from, "Use mean and std of this data set")
      ->excludes(mean)
      ->excludes(stddev);
  app.footer(
      "By default, mean and std are computed from the imported images. For a test split, use\n"
      "--statistics-from with its train split.");
}

/// How the files of images are read and stored.
void add_file_options(CLI::App& app, ImageArguments& arguments) {
  data::ImageFolderOptions& options = arguments.options;
  app.add_option("--channels", options.channels,
                 "Store images with 1 channel (grey) or 3 (red, green, blue). By default as many as --mean, --std or "
                 "--statistics-from have; otherwise 1 if all images of an imagefolder are grey, and 3 if not")
      ->check(CLI::IsMember({1, 3}))
      ->type_name("N");
  add_choice(app, "--store", arguments.store, {"auto", "decoded", "encoded", "jpeg"},
             "How to store image files. decoded: as pixels, for images of one size, or of any size with "
             "--short-side; encoded: as the bytes of the files (jpeg: deprecated alias); auto: decoded if all have "
             "one size and need at most 512 MiB, or with --short-side");
  app.add_option("--short-side", options.short_side,
                 "Store images as pixels, shrunk so that their shorter side has N pixels, with their aspect ratio; an "
                 "image whose shorter side has fewer stays as it is. Training resizes the part that it needs, on the "
                 "device")
      ->check(CLI::Range(1, kMaxShortSide))
      ->type_name("N");
  add_value(app, "--field", "NAME", options.field,
            "The column of images in Parquet and Arrow files; by default, the one with images");
  add_value(app, "--label", "NAME", options.label_field, "Their column of labels; by default, the one with labels");
  app.add_flag("--skip-bad", options.skip_bad,
               "Skip image files that cannot be decoded, instead of ending with an error");
}

void add_placement_options(CLI::App& app, ImageArguments& arguments) {
  app.add_option(
         "--chunk", arguments.chunk_bytes,
         "Maximum size of the HDF5 chunks of the images. A chunk holds as many whole images as fit, but at least one; "
         "chunks of encoded images have exactly this size. 0: contiguous (default: 512KiB, or --alignment if it is "
         "larger)")
      ->transform(CLI::AsSizeValue(false))
      ->check(CLI::Range(std::uint64_t{0}, data::kMaxChunkBytes, ""))
      ->type_name("BYTES");
  app.add_option("--alignment", arguments.options.placement.alignment_bytes,
                 "Each chunk, and other data of at least this size, begins at a multiple of it. Use the stripe (chunk "
                 "size) of the file system. 0: no alignment")
      ->transform(CLI::AsSizeValue(false))
      ->check(CLI::Validator(
          [](const std::string& text) {
            const auto bytes = std::strtoull(text.c_str(), nullptr, 10);
            return (bytes & (bytes - 1)) == 0 && bytes <= (1u << 30) ? "" : "expected a power of two up to 1 GiB, or 0";
          },
          ""))
      ->default_str("512KiB")
      ->type_name("BYTES");
}

void require_whole_images(const data::ImageFolderOptions& options) {
  require(options.short_side == 0, ErrorCode::usage,
          "--short-side is for image files; those of CIFAR-10 and MNIST have small images of one size");
}

void add_image_import(CLI::App& parent, Run& run, const std::string& kind, const std::string& source,
                      ImageImport import) {
  CLI::App* app = parent.add_subcommand(kind, "Import " + source);
  const auto arguments = std::make_shared<ImageArguments>();
  data::ImageFolderOptions& options = arguments->options;
  add_value(*app, "source", "SOURCE", options.source, "What to import: " + source)->required();
  add_value(*app, "output", "OUT.h5", options.output, "The data set to create")->required();
  add_choice(*app, "--split", options.split, {"train", "val", "test"},
             "The split to import; for a folder of image files, the name of the split");
  add_selection_options(*app, *arguments);
  add_file_options(*app, *arguments);
  add_placement_options(*app, *arguments);
  app->add_flag("--force", options.replace, "Replace OUT.h5 if it exists");
  set_run(*app, run, [arguments, import] { return stoppable([&] { import_images(*arguments, import); }); });
}

// ---- Text -----------------------------------------------------------------------------------------------------------

void add_tokenizer(CLI::App& app, std::string& tokenizer) {
  add_value(app, "--tokenizer", "FILE", tokenizer,
            "The tokenizer of the model: a tokenizer.json of Hugging Face, or the folder that contains it")
      ->required();
}

void add_range(CLI::App& app, std::int64_t& start, std::int64_t& end, const char* what, const char* counted) {
  add_value(app, "--start", "N", start, fmt::format("The first {} to import, {}", what, counted))
      ->check(CLI::Range(std::int64_t{0}, kMaxSamples));
  add_number(app, "--end", end, 1, kMaxSamples, fmt::format("The {} after the last one to import", what));
}

void add_max_line(CLI::App& app, std::uint64_t& max_line_bytes) {
  app.add_option("--max-line", max_line_bytes,
                 "Maximum length of a line of JSON. A line is held in memory as a whole, with its tokens")
      ->transform(CLI::AsSizeValue(false))
      ->check(CLI::Range(std::uint64_t{1}, std::uint64_t{1} << 40, ""))
      ->default_str("1GiB")
      ->type_name("BYTES");
}

void add_split(CLI::App& app, std::string& split) {
  add_value(app, "--split", "NAME", split,
            "The split to import from a folder of tables; by default, train, or the only one");
}

struct TextArguments {
  std::vector<std::string> files;  // the sources, then the output
  std::string tokenizer;
  data::TextImportOptions options;
};

void import_text(const TextArguments& arguments) {
  data::TextImportOptions options = arguments.options;
  require(arguments.files.size() >= 2, ErrorCode::usage,
          "expected at least two files, SOURCE... OUT.h5, found only {}; see `lockstep data import text --help`",
          arguments.files.front());
  options.sources.assign(arguments.files.begin(), arguments.files.end() - 1);
  std::ranges::transform(options.sources, options.sources.begin(), find_source);
  options.output = arguments.files.back();
  require_data_set_name(options.output);
  const text::Tokenizer tokenizer = text::Tokenizer::open(arguments.tokenizer);
  const data::TextEncoder encoder{
      .encode = [&](std::string_view text, std::vector<std::int32_t>& ids) { tokenizer.encode(text, ids); },
      .vocabulary_size = tokenizer.vocabulary_size(),
      .end_token = tokenizer.end_token(),
      .hash = tokenizer.hash(),
      .path = tokenizer.path(),
      .json = tokenizer.content()};
  const data::TextImportResult result =
      run_with_bar([&](const data::ImportProgress& progress) { return data::import_text(options, encoder, progress); });
  print_text("Imported {} with {} ({} of text) from {} into {} ({}).\n", counted(result.n_documents, "document"),
             counted(result.n_tokens, "token"), size_text(result.text_bytes), counted(result.n_files, "file"),
             options.output, size_text(result.size_bytes));
  print_text("Tokenizer: {}, {} tokens, hash {}.\n", encoder.path, encoder.vocabulary_size, encoder.hash);
  if (encoder.end_token)
    print_text("Each document ends with the end token, {}.\n", *encoder.end_token);
  else
    print_text("The tokenizer has no end token: the documents follow each other without one.\n");
  if (result.n_empty > 0) print_text("Left out: {} without a token.\n", counted(result.n_empty, "document"));
}

void add_text_import(CLI::App& parent, Run& run) {
  CLI::App* app = parent.add_subcommand("text", "Import text: SOURCE... OUT.h5 --tokenizer tokenizer.json");
  const auto arguments = std::make_shared<TextArguments>();
  data::TextImportOptions& options = arguments->options;
  add_value(*app, "files", "FILE", arguments->files,
            "The sources, then the data set to create: SOURCE... OUT.h5. A source is a text file, which is one "
            "document; JSON Lines (*.jsonl, *.jsonl.gz, *.jsonl.zst), with one document per line; a table (*.parquet, "
            "*.arrow, *.csv, *.tsv), with one document per row; a tar archive (*.tar, *.tar.gz, *.tar.zst), with one "
            "document per member; or a folder of them, such as a data set of the Hugging Face Hub, whose files are "
            "imported in the order of their paths")
      ->required();
  add_tokenizer(*app, arguments->tokenizer);
  add_value(*app, "--field", "NAME", options.field,
            "The field of each line of JSON, or the column, that contains the text")
      ->capture_default_str();
  add_split(*app, options.split);
  add_range(*app, options.start, options.end, "document", "counted from 0 over all sources");
  add_max_line(*app, options.max_line_bytes);
  app->add_flag("--force", options.replace, "Replace OUT.h5 if it exists");
  set_run(*app, run, [arguments] { return stoppable([&] { import_text(*arguments); }); });
}

// ---- Conversations --------------------------------------------------------------------------------------------------

struct ChatArguments {
  std::string tokenizer, chat_template = "auto", fraction = "1", too_long = "truncate";
  data::ChatImportOptions options;
};

/// Parses "0.9:1". A single number such as "0.9" means 0:0.9.
void parse_fraction(const std::string& text, data::ChatImportOptions& options) {
  const auto number = [&](std::string_view part) {
    double value = -1;
    const auto [end, error] = std::from_chars(part.data(), part.data() + part.size(), value);
    const bool is_good = error == std::errc() && end == part.data() + part.size() && value >= 0 && value <= 1;
    require(is_good, ErrorCode::usage, "--fraction: expected a number from 0 to 1, or two as in 0.9:1, found {}", text);
    return value;
  };
  const std::size_t colon = text.find(':');
  options.from = colon == std::string::npos ? 0 : number(std::string_view(text).substr(0, colon));
  options.to = number(colon == std::string::npos ? text : std::string_view(text).substr(colon + 1));
  require(options.from < options.to, ErrorCode::usage, "--fraction {}: the first number must be less than the second",
          text);
}

void report_chat(const data::ChatImportOptions& options, const data::ChatImportResult& result) {
  print_text("Imported {} with {} tokens ({} of JSON) from {} into {} ({}).\n",
             counted(result.n_conversations, "conversation"), result.n_tokens, size_text(result.source_bytes),
             options.source, options.output, size_text(result.size_bytes));
  print_text("Answers: {} with {} tokens, which count towards the loss ({:.1f} %).\n", result.n_answers,
             result.n_answer_tokens,
             100 * static_cast<double>(result.n_answer_tokens) / static_cast<double>(result.n_tokens));
  print_text("Truncated: {}{}.\n", counted(result.n_truncated, "conversation"),
             options.max_tokens > 0 ? fmt::format(" to {} tokens", options.max_tokens) : " (--max-tokens is not set)");
  print_text(
      "Left out: {} ({} without an assistant, {} whose answers all have weight 0 or are empty, {} longer than "
      "--max-tokens, {} truncated before the answer).\n",
      counted(result.n_left_out(), "conversation"), result.n_without_assistant, result.n_untrained, result.n_too_long,
      result.n_answer_cut_off);
}

void import_chat(const ChatArguments& arguments) {
  data::ChatImportOptions options = arguments.options;
  require_data_set_name(options.output);
  options.source = find_source(options.source);
  parse_fraction(arguments.fraction, options);
  options.too_long = arguments.too_long == "drop" ? data::TooLong::drop : data::TooLong::truncate;
  require(options.too_long == data::TooLong::truncate || options.max_tokens > 0, ErrorCode::usage,
          "--too-long drop needs --max-tokens N, the greatest length of a conversation");
  const text::Tokenizer tokenizer = text::Tokenizer::open(arguments.tokenizer);
  const std::string folder = std::filesystem::path(tokenizer.path()).parent_path().string();
  const auto chat = text::ChatTemplate::choose(arguments.chat_template, folder.empty() ? "." : folder, "--template",
                                               tokenizer.path());
  const text::ConversationEncoder conversations(chat, tokenizer);
  // Not within the braces: if it throws there, g++ 12 destroys the description twice.
  const std::optional<std::int32_t> end = text::answer_end(chat, tokenizer);
  const data::ChatEncoder encoder{
      .encode = [&](const text::Chat& c) { return conversations.encode(c.messages, c.variables); },
      .description = {.vocabulary_size = tokenizer.vocabulary_size(),
                      .tokenizer_hash = tokenizer.hash(),
                      .end_token = {},
                      .source = {},
                      .chat_template = chat.text(),
                      .chat_template_source = chat.source(),
                      .special_tokens = chat.variables()},
      .tokenizer_path = tokenizer.path(),
      .tokenizer_json = tokenizer.content(),
      .answer_end = end};
  const data::ChatImportResult result =
      run_with_bar([&](const data::ImportProgress& progress) { return data::import_chat(options, encoder, progress); });
  report_chat(options, result);
  print_text("Tokenizer: {}, {} tokens, hash {}.\n", tokenizer.path(), tokenizer.vocabulary_size(), tokenizer.hash());
  const std::string text = end ? tokenizer.decode(std::span(&*end, 1)) : "";
  print_text("Template: {}.{}\n", chat.source(),
             !end ? " It ends answers without a token of its own, so that models will not learn to stop there."
             : result.n_ended == 0 ? ""
                                   : fmt::format(" Each answer ends with {} ({}).", text, *end));
  if (end && result.n_ended == 0)
    log::warning(
        "no answer includes its end token {}, so that no loss counts it: models will not learn to stop there; include "
        "it in the {{% generation %}} block of the template, or raise --max-tokens",
        text);
}

void add_chat_selection(CLI::App& app, ChatArguments& arguments) {
  data::ChatImportOptions& options = arguments.options;
  add_value(app, "--field", "NAME", options.field, "The field with the list of messages, if it has another name");
  add_split(app, options.split);
  add_range(app, options.start, options.end, "conversation", "counted from 0");
  add_value(app, "--fraction", "N|A:B", arguments.fraction,
            "Import a random fraction of the conversations: 0.9 takes about nine in ten, 0.9:1 exactly the others")
      ->capture_default_str();
  add_value(app, "--seed", "N", options.seed, "Seed of --fraction")->capture_default_str();
  add_number(app, "--max-tokens", options.max_tokens, 2, kMaxSamples,
             "Maximum length of a conversation; by default, no limit");
  add_choice(app, "--too-long", arguments.too_long, {"truncate", "drop"},
             "What happens to longer conversations. truncate: only their first tokens are kept; drop: they are "
             "left out");
}

void add_chat_import(CLI::App& parent, Run& run) {
  CLI::App* app = parent.add_subcommand("chat", "Import conversations: SOURCE OUT.h5 --tokenizer tokenizer.json");
  const auto arguments = std::make_shared<ChatArguments>();
  data::ChatImportOptions& options = arguments->options;
  add_value(*app, "source", "SOURCE", options.source,
            "The conversations: JSON Lines, one JSON array, a table, or a folder of them, with \"messages\" or "
            "\"conversations\" (a list of role and content, or of from and value), with \"instruction\", \"input\" and "
            "\"output\", or with \"prompt\" and \"completion\"")
      ->required();
  add_value(*app, "output", "OUT.h5", options.output, "The data set to create")->required();
  add_tokenizer(*app, arguments->tokenizer);
  add_value(*app, "--template", "NAME|FILE", arguments->chat_template,
            "How the messages become one text: chatml, llama3, a file with a template in Jinja, or auto, the one "
            "in tokenizer_config.json or chat_template.jinja beside the tokenizer")
      ->capture_default_str();
  add_chat_selection(*app, *arguments);
  add_max_line(*app, options.max_line_bytes);
  app->add_flag("--force", options.replace, "Replace OUT.h5 if it exists");
  app->footer("Only what the assistant says, and the token that ends it, count towards the loss.");
  set_run(*app, run, [arguments] { return stoppable([&] { import_chat(*arguments); }); });
}

}  // namespace

void add_data_import(CLI::App& data, Run& run) {
  CLI::App* app = data.add_subcommand("import", "Create the data set OUT.h5 with one split");
  app->require_subcommand(1);
  const ImageImport import_cifar10 = [](const data::ImageFolderOptions& options, const data::ImportProgress& progress) {
    require_whole_images(options);
    return data::import_cifar10(options, progress);
  };
  const ImageImport import_mnist = [](const data::ImageFolderOptions& options, const data::ImportProgress& progress) {
    require_whole_images(options);
    return data::import_mnist(options, progress);
  };
  add_image_import(*app, run, "cifar10",
                   "the binary version of CIFAR-10: the folder cifar-10-batches-bin, or one of its .bin files",
                   import_cifar10);
  add_image_import(
      *app, run, "mnist",
      "MNIST, or another data set in its format (IDX): the folder that contains train-images-idx3-ubyte and "
      "so on, possibly as .gz, or one file of images",
      import_mnist);
  add_image_import(
      *app, run, "imagefolder",
      "a folder that contains one folder of JPEG and PNG files per class, or images in Parquet or Arrow files",
      data::import_image_folder);
  add_image_import(*app, run, "tiny-imagenet",
                   "Tiny ImageNet as it is distributed, or with val sorted into classes: the folder tiny-imagenet-200",
                   data::import_tiny_imagenet);
  add_image_import(
      *app, run, "webdataset",
      "tar archives with images and labels (.jpg or .png, and .cls, .json or .txt): one archive, or a folder "
      "of them",
      data::import_webdataset);
  add_text_import(*app, run);
  add_chat_import(*app, run);
}

}  // namespace lockstep::commands

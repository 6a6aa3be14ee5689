// lockstep data import | info | verify: creates, describes and verifies data sets.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdlib>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>

#include "commands/commands.h"
#include "commands/report.h"
#include "data/cifar10.h"
#include "data/image_file.h"
#include "data/image_folder.h"
#include "lockstep/error.h"
#include "lockstep/log.h"
#include "lockstep/philox.h"
#include "train/metrics.h"

namespace lockstep::commands {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::int64_t kSamplesPerUpdate = 500;
constexpr std::size_t kMaxNames = 20;

/// "6.15 MB"
std::string size_text(double bytes) {
  for (const char* unit : {"B", "kB", "MB", "GB"}) {
    if (bytes < 1000.0) return fmt::format("{:.3g} {}", bytes, unit);
    bytes /= 1000.0;
  }
  return fmt::format("{:.3g} TB", bytes);
}

/// "200 per class", "17 to 21 per class"
std::string per_class_text(const std::vector<std::int64_t>& samples_per_class) {
  const auto [least, most] = std::minmax_element(samples_per_class.begin(), samples_per_class.end());
  return *least == *most ? fmt::format("{} per class", *least) : fmt::format("{} to {} per class", *least, *most);
}

/// "32 x 32 x 3"
std::string shape_text(const data::ImageSetInfo& info) {
  return info.height > 0 ? fmt::format("{} x {} x {}", info.height, info.width, info.channels) : "several sizes";
}

// ---------------------------------------------------------------------------------------------------------------

struct ImportArguments {
  std::string kind;
  data::ImageFolderOptions options;
  std::optional<std::uint64_t> chunk_bytes;
  std::string store = "auto";
  std::string statistics_from;
};

data::ImageStorage storage_of(const std::string& word) {
  if (word == "decoded") return data::ImageStorage::decoded;
  return word == "auto" ? data::ImageStorage::automatic : data::ImageStorage::encoded;
}

int run_import(ImportArguments arguments) {
  data::ImageFolderOptions& options = arguments.options;
  options.storage = storage_of(arguments.store);
  data::Placement& placement = options.placement;
  placement.chunk_bytes = arguments.chunk_bytes.value_or(std::max(placement.chunk_bytes, placement.alignment_bytes));
  if (!arguments.statistics_from.empty()) {
    check_outputs({options.output}, {arguments.statistics_from});
    const data::ImageFile train = data::open_image_file(data::InputFile(arguments.statistics_from));
    options.mean = train.info.mean;
    options.stddev = train.info.stddev;
  }
  data::ImportResult result;
  {
    std::unique_ptr<train::ProgressBar> bar;
    std::int64_t next_update = 0;
    const data::ImportProgress progress = [&](std::int64_t done, std::int64_t total) {
      if (!bar) bar = std::make_unique<train::ProgressBar>("import", total, true);
      if (done < next_update && done != total) return;
      next_update = done + kSamplesPerUpdate;
      bar->update(done, "");
    };
    if (arguments.kind == "cifar10")
      result = data::import_cifar10(options, progress);
    else if (arguments.kind == "imagefolder")
      result = data::import_image_folder(options, progress);
    else
      result = data::import_tiny_imagenet(options, progress);
  }
  for (const std::string& sentence : result.skipped) log::warning("Skipped: {}", sentence);
  if (!result.missing.empty()) log::warning("{}", result.missing);
  const data::ImageSetInfo& info = result.info;
  print_text("Imported {} {} images of {} in {} classes ({}) from {} into {} ({}).\n", info.n_samples, info.split,
             shape_text(info), info.classes, per_class_text(result.samples_per_class), fmt::join(result.files, ", "),
             options.output, size_text(static_cast<double>(result.size_bytes)));
  if (!result.channels.empty()) print_text("Channels: {}.\n", result.channels);
  if (!result.storage.empty()) print_text("Stored: {}.\n", result.storage);
  if (!result.skipped.empty()) print_text("Skipped: {} images that cannot be decoded.\n", result.skipped.size());
  return kExitDone;
}

void add_import(CLI::App& data, Run& run) {
  CLI::App* app = data.add_subcommand("import", "Create the data set OUT.h5 with one split");
  const auto arguments = std::make_shared<ImportArguments>();
  data::ImageFolderOptions& options = arguments->options;
  app->add_option(
         "kind", arguments->kind,
         "Kind of SOURCE: cifar10 (the binary version), imagefolder (one folder of JPEG and PNG files per class), "
         "tiny-imagenet (as it is distributed)")
      ->required()
      ->check(CLI::IsMember({"cifar10", "imagefolder", "tiny-imagenet"}))
      ->type_name("KIND");
  app->add_option("source", options.source,
                  "cifar10: the folder cifar-10-batches-bin, or one of its .bin files; imagefolder: the folder that "
                  "contains the class folders; tiny-imagenet: the folder tiny-imagenet-200")
      ->required()
      ->type_name("SOURCE");
  app->add_option("output", options.output, "The data set to create")->required()->type_name("OUT.h5");
  app->add_option("--split", options.split, "The split to import; for an imagefolder, the name of the split")
      ->check(CLI::IsMember({"train", "val", "test"}))
      ->capture_default_str();
  CLI::Option* per_class =
      app->add_option("--per-class", options.per_class, "Import only the first N samples of each class")
          ->check(CLI::Range(std::int64_t{1}, kMaxSamples))
          ->type_name("N");
  app->add_option("--limit", options.limit, "Import only the first N samples")
      ->check(CLI::Range(std::int64_t{1}, kMaxSamples))
      ->type_name("N")
      ->excludes(per_class);
  CLI::Option* mean = app->add_option("--mean", options.mean, "Means to store, for values in [0, 1]")
                          ->delimiter(',')
                          ->allow_extra_args(false)
                          ->type_name("R,G,B|GREY");
  CLI::Option* stddev = app->add_option("--std", options.stddev, "Standard deviations to store, for values in [0, 1]")
                            ->delimiter(',')
                            ->allow_extra_args(false)
                            ->type_name("R,G,B|GREY");
  app->add_option("--statistics-from", arguments->statistics_from, "Use mean and std of this data set")
      ->type_name("TRAIN.h5")
      ->excludes(mean)
      ->excludes(stddev);
  app->add_option("--channels", options.channels,
                  "Store images with 1 channel (grey) or 3 (red, green, blue). By default as many as --mean, --std or "
                  "--statistics-from have; otherwise 1 if all images of an imagefolder are grey, and 3 if not")
      ->check(CLI::IsMember({1, 3}))
      ->type_name("N");
  app->add_option("--store", arguments->store,
                  "How to store image files. decoded: as pixels, for images of one size; encoded: as the bytes of the "
                  "files (jpeg: its earlier name); auto: decoded if all have one size and need at most 512 MiB")
      ->check(CLI::IsMember({"auto", "decoded", "encoded", "jpeg"}))
      ->capture_default_str();
  app->add_flag("--skip-bad", options.skip_bad,
                "Skip image files that cannot be decoded, instead of ending with an error");
  app->add_option(
         "--chunk", arguments->chunk_bytes,
         "Maximum size of the HDF5 chunks of the images. A chunk holds as many whole images as fit, but at least one; "
         "chunks of encoded images have exactly this size. 0: contiguous (default: 512KiB, or --alignment if it is "
         "larger)")
      ->transform(CLI::AsSizeValue(false))
      ->check(CLI::Range(std::uint64_t{0}, data::kMaxChunkBytes, ""))
      ->type_name("BYTES");
  app->add_option("--alignment", options.placement.alignment_bytes,
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
  app->add_flag("--force", options.replace, "Replace OUT.h5 if it exists");
  app->footer(
      "By default, mean and std are computed from the imported images. For a test split, use\n"
      "--statistics-from with its train split.");
  app->callback([&run, arguments] { run = [arguments] { return run_import(*arguments); }; });
}

// ---------------------------------------------------------------------------------------------------------------

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

int run_info(const FileArguments& arguments) {
  check_outputs({arguments.json}, {arguments.file});
  const data::InputFile file(arguments.file);
  const data::ImageFile layout = data::open_image_file(file);
  const data::ImageSetInfo& info = layout.info;
  std::vector<std::int64_t> per_class(static_cast<std::size_t>(info.classes), 0);
  for (const std::int32_t label : data::read_labels(file, layout)) ++per_class[static_cast<std::size_t>(label)];
  const Json object = {{"path", info.path},
                       {"format", "lockstep-images"},
                       {"split", info.split},
                       {"samples", info.n_samples},
                       {"height", info.height},
                       {"width", info.width},
                       {"encoding", layout.encoded ? layout.encoded->formats : "decoded"},
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
                       {"sealed", layout.has_user_block}};  // its name until release 0.1; removed in the next one
  std::string text = fmt::format("{}\n", info.path);
  const auto line = [&](const char* name, const std::string& value) {
    if (!value.empty()) text += fmt::format("  {:<10} {}\n", name, value);
  };
  line("split", info.split);
  line("samples", layout.encoded
                      ? fmt::format("{} {} images, {}{}", info.n_samples, format_names(layout.encoded->formats),
                                    sizes_text(*layout.encoded), info.channels == 1 ? ", 1 channel" : "")
                      : fmt::format("{} images, {} uint8 (height, width, channels)", info.n_samples, shape_text(info)));
  line("classes", fmt::format("{}, {}", info.classes, per_class_text(per_class)));
  line("names", names_text(info.class_names));
  line("mean", fmt::format("{:.6f}", fmt::join(info.mean, ", ")));
  line("std", fmt::format("{:.6f}", fmt::join(info.stddev, ", ")));
  line("source", layout.source);
  line("size", fmt::format("{} ({} bytes)", size_text(static_cast<double>(file.size_bytes())), file.size_bytes()));
  line("storage", storage_text(layout));
  line("user block", layout.has_user_block ? "yes: the length of the file and its metadata match it"
                                           : "no: another program wrote the file");
  report(arguments.json, object, text);
  return kExitDone;
}

int run_verify(const FileArguments& arguments) {
  check_outputs({arguments.json}, {arguments.file});
  std::vector<std::string> damaged;
  std::uint64_t checked_bytes = 0;
  const data::InputFile file(arguments.file);
  try {
    const data::ImageFile layout = data::open_image_file(file);
    {
      train::ProgressBar bar("verify", static_cast<std::int64_t>(layout.images.size_bytes + layout.labels.size_bytes),
                             true);
      damaged = data::verify_image_file(file, layout, [&](std::uint64_t bytes) {
        checked_bytes += bytes;
        bar.update(static_cast<std::int64_t>(checked_bytes), "");
      });
    }
    try {
      data::read_labels(file, layout);
    } catch (const Error& error) {
      damaged.push_back(error.what());
    }
  } catch (const Error& error) {
    // A file that is not a data set cannot be verified. A data set that cannot be opened is damaged.
    if (error.code() == ErrorCode::data_format) throw;
    damaged.push_back(error.what());
  }
  std::string text;
  for (const std::string& sentence : damaged) text += sentence + '\n';
  text += damaged.empty() ? fmt::format("{} is valid: {} of images and labels match their checksums.\n", arguments.file,
                                        size_text(static_cast<double>(checked_bytes)))
                          : fmt::format("{} is damaged: copy or import it again.\n", arguments.file);
  report(arguments.json,
         {{"path", arguments.file}, {"good", damaged.empty()}, {"damaged", damaged}, {"checked_bytes", checked_bytes}},
         text);
  return damaged.empty() ? kExitDone : kExitFailed;
}

void add_file_command(CLI::App& data, Run& run, const std::string& name, const std::string& description,
                      int (*command)(const FileArguments&)) {
  CLI::App* app = data.add_subcommand(name, description);
  const auto arguments = std::make_shared<FileArguments>();
  app->add_option("file", arguments->file, "The data set")->required()->type_name("FILE");
  add_json(*app, arguments->json);
  app->callback([&run, arguments, command] { run = [arguments, command] { return command(*arguments); }; });
}

}  // namespace

void add_data(CLI::App& app, Run& run) {
  CLI::App* data = app.add_subcommand("data", "Create, describe and verify data sets; encode text");
  data->require_subcommand(1);
  add_import(*data, run);
  add_file_command(*data, run, "info", "Print what a data set contains", run_info);
  add_file_command(*data, run, "verify", "Verify the checksums of a data set; exit status 1 if it is damaged",
                   run_verify);
  add_encode_and_decode(*data, run);
}

}  // namespace lockstep::commands

// The import makes two passes over the files. The first decodes all of them with several threads, to find bad files,
// sizes and statistics, which decide how images are stored. The second pass reads them again and writes the data set.
#include <algorithm>
#include <array>
#include <filesystem>
#include <map>

#include "base/file.h"
#include "base/hub_cache.h"
#include "base/model_files.h"
#include "base/pool.h"
#include "base/printable.h"
#include "base/utf8.h"
#include "data/batches.h"
#include "data/file.h"
#include "data/image_files.h"
#include "data/image_tables.h"
#include "data/import.h"
#include "lockstep/error.h"

namespace lockstep::data {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kMaxDecodedBytes = 512u << 20;  // up to this size, images are stored decoded by default
constexpr std::size_t kFilesPerUpdate = 256;
constexpr std::size_t kMaxListed = 20;  // bad files that the message lists

// ---- Listing files --------------------------------------------------------------------------------------------------

enum class Kind { image, other_image, no_image };

/// Decided by the name, as in torchvision's ImageFolder.
Kind kind_of(const fs::path& path) {
  if (has_image_name(path.string())) return Kind::image;
  constexpr std::string_view kOthers[] = {".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp"};
  return std::ranges::count(kOthers, lower_extension(path.string())) > 0 ? Kind::other_image : Kind::no_image;
}

std::vector<fs::path> sorted_entries(const std::string& folder, bool folders) {
  std::vector<fs::path> out;
  try {
    for (const fs::directory_entry& entry : fs::directory_iterator(folder))
      if (entry.is_directory() == folders) out.push_back(entry.path());
  } catch (const fs::filesystem_error& error) {
    fail(ErrorCode::data_source, "cannot list {}: {}", error.path1().string(), error.code().message());
  }
  std::ranges::sort(out);
  return out;
}

/// Escapes the bytes of a name that are not ASCII, so that the file can be found and renamed: "caf\xe9".
std::string printable(const std::string& name) {
  std::string out;
  for (const char c : name)
    out += static_cast<unsigned char>(c) < 0x80 ? std::string(1, c)
                                                : fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
  return out;
}

void require_folder(const std::string& path) {
  require(is_there(path), ErrorCode::data_source, "the source {} does not exist", path);
  require(is_folder(path), ErrorCode::data_source, "{} is a file; expected a folder", path);
}

/// Image files below `folder`, sorted by path.
void append_images(const std::string& folder, std::int32_t label, std::vector<SourceFile>& out) {
  for (const std::string& path :
       list_files(folder, [](const fs::path& file) { return kind_of(file) != Kind::no_image; })) {
    SourceFile file{.path = path, .label = label};
    std::error_code error;
    const fs::file_status status = fs::status(path, error);
    if (fs::exists(status) ? !fs::is_regular_file(status) : status.type() == fs::file_type::not_found)
      file.bad = "it is not a file, or it is a broken link";
    else if (kind_of(path) == Kind::other_image)
      file.bad = "its name is not that of a JPEG or PNG file; convert it";
    out.push_back(std::move(file));
  }
}

ImageSource list_tables(const ImageFolderOptions& options) {
  ImageSource source;
  source.tables = std::make_shared<TableImages>(list_table_images(options));
  source.classes = std::move(source.tables->classes);
  source.files = std::move(source.tables->rows);
  for (const ListedFile& table : source.tables->tables.files) source.lists.push_back(table.path);
  source.description = fs::path(options.source).filename().string();
  if (!source.tables->tables.split.empty()) source.description += "; split " + source.tables->tables.split;
  return source;
}

ImageSource list_image_folder(const ImageFolderOptions& options) {
  if (contains_tables(options.source)) return list_tables(options);
  require_folder(options.source);
  require(options.field.empty() && options.label_field.empty(), ErrorCode::usage,
          "--field and --label name columns of Parquet and Arrow files, but {} has none", options.source);
  ImageSource source;
  const std::vector<fs::path> folders = sorted_entries(options.source, true);
  require(!folders.empty(), ErrorCode::data_source, "{} contains no folders; expected one per class", options.source);
  const bool is_annotated = folders.size() == 1 && is_there(options.source + "/val_annotations.txt");
  require(
      !is_annotated, ErrorCode::data_source,
      "{} is the validation split of Tiny ImageNet, whose labels are in val_annotations.txt and not in the names of "
      "folders: import it with `lockstep data import tiny-imagenet {} OUT.h5 --split val`",
      options.source, (fs::path(options.source) / "..").lexically_normal().string());
  for (const fs::path& folder : folders) {
    source.classes.push_back(folder.filename().string());
    require(is_utf8(source.classes.back()), ErrorCode::data_source,
            "expected folders whose names are UTF-8, since they name the classes, found {}/{}: rename it",
            options.source, printable(source.classes.back()));
  }
  const auto is_split = [](const std::string& name) {
    return name == "train" || name == "val" || name == "valid" || name == "test";
  };
  require(!std::ranges::all_of(source.classes, is_split), ErrorCode::data_source,
          "{} contains the splits {} instead of classes: import {}/{} and the other splits separately", options.source,
          fmt::join(source.classes, ", "), options.source, source.classes.front());
  for (std::size_t k = 0; k < folders.size(); ++k) {
    const std::size_t before = source.files.size();
    append_images(folders[k].string(), static_cast<std::int32_t>(k), source.files);
    require(source.files.size() > before, ErrorCode::data_source,
            "{} contains no images (*.jpg, *.jpeg, *.png): remove the folder if it is not a class",
            folders[k].string());
  }
  source.description = "image folder " + source_name(options.source);
  return source;
}

std::vector<std::string> read_list(const std::string& path) {
  auto lines = read_lines(path);
  require(lines.has_value(), ErrorCode::data_source,
          "cannot read {}: expected the folder tiny-imagenet-200 of Tiny ImageNet", path);
  return std::move(*lines);
}

/// Reads val_annotations.txt: image, wnid and box, separated by tabs.
void list_annotated(const std::string& folder, const std::map<std::string, std::int32_t>& labels,
                    std::vector<SourceFile>& out) {
  const std::string annotations = folder + "/val_annotations.txt";
  std::size_t n = 0;
  for (const std::string& line : read_list(annotations)) {
    ++n;
    const std::size_t tab = line.find('\t');
    const std::size_t end = tab == std::string::npos ? tab : line.find('\t', tab + 1);
    const std::string name = line.substr(0, tab);
    const std::string wnid = tab == std::string::npos ? "" : line.substr(tab + 1, end - tab - 1);
    const auto label = labels.find(wnid);
    require(label != labels.end() && !name.empty() && name.find('/') == std::string::npos, ErrorCode::data_source,
            "{}:{}: expected an image, a tab and a class of wnids.txt, found \"{}\"", annotations, n, line);
    out.push_back({.path = folder + "/images/" + name, .label = label->second});
  }
}

ImageSource list_tiny_imagenet(const ImageFolderOptions& options) {
  require(options.split != "test", ErrorCode::usage,
          "the test images of Tiny ImageNet have no labels: import --split val");
  require_folder(options.source);
  const std::string inner = options.source + "/tiny-imagenet-200";
  const std::string root = fs::is_directory(inner) ? inner : options.source;
  ImageSource source;
  const std::string folder = root + "/" + options.split, wnids = root + "/wnids.txt";
  if (is_there(wnids)) {
    source.lists = {wnids, root + "/val/val_annotations.txt"};
    source.classes = read_list(wnids);
    std::ranges::sort(source.classes);
  } else {  // copies whose images were sorted into folders may lack it
    const std::string train = root + "/train";
    for (const fs::path& path : sorted_entries(is_folder(train) ? train : folder, true))
      source.classes.push_back(path.filename().string());
  }
  std::map<std::string, std::int32_t> labels;
  for (const std::string& wnid : source.classes)
    require(labels.emplace(wnid, static_cast<std::int32_t>(labels.size())).second, ErrorCode::data_source,
            "{} names {} twice", wnids, wnid);
  require(!labels.empty(), ErrorCode::data_source, "{} names no classes, and neither do folders of {}/train", wnids,
          root);
  if (options.split == "val" && is_folder(folder + "/images")) {
    list_annotated(folder, labels, source.files);
  } else {
    for (const auto& [wnid, label] : labels) {
      const std::string of_class = folder + "/" + wnid;
      require(is_folder(of_class), ErrorCode::data_source, "{} is a class of {}, but {} is not a folder", wnid, root,
              of_class);
      append_images(of_class, label, source.files);
    }
  }
  source.description = "Tiny ImageNet: " + source_name(options.source);
  source.channels = 3;
  return source;
}

// ---- Import ---------------------------------------------------------------------------------------------------------

class Import {
 public:
  Import(const ImageFolderOptions& options, const ImportProgress& progress, ImageSource source)
      : options_(options), progress_(progress), source_(std::move(source)) {
    const int requested = requested_channels(options);
    requested_channels_ = requested > 0 ? requested : source_.channels;
    require_no_source();
    select();
  }

  ImportResult run() {
    examine();
    skip_bad_files();
    ImportResult result;
    choose_channels(result);
    choose_storage(result);
    write(result);
    return result;
  }

 private:
  /// How images are stored.
  enum class Form { encoded, one_size, regions };
  static double mebibytes(std::uint64_t size_bytes) { return static_cast<double>(size_bytes) / (1 << 20); }

  void require_no_source() const {
    if (!fs::exists(options_.output)) return;  // usually; otherwise, a million files may have to be compared
    require_no_input(options_.output, source_.lists);
    if (source_.tables) return;
    for (const SourceFile& file : source_.files) require_no_input(options_.output, std::array{file.path});
  }

  void select() {
    std::vector<SourceFile>& files = source_.files;
    require(!files.empty(), ErrorCode::data_source, "{} contains no images", options_.source);
    if (options_.per_class > 0) {
      std::vector<std::int64_t> count(source_.classes.size(), 0);
      std::erase_if(files, [&](const SourceFile& f) { return ++count[std::size_t(f.label)] > options_.per_class; });
      for (std::size_t k = 0; k < count.size(); ++k)
        require(count[k] >= options_.per_class, ErrorCode::data_range,
                "{} samples of each class are requested, but {} contains {} of class {}", options_.per_class,
                options_.source, count[k], source_.classes[k]);
    }
    const auto n = static_cast<std::int64_t>(files.size());
    require(options_.limit <= n, ErrorCode::data_range, "{} samples are requested, but {} contains {}", options_.limit,
            options_.source, n);
    if (options_.limit > 0) files.resize(static_cast<std::size_t>(options_.limit));
  }

  /// Decodes every file. The sums are integers, so the result is the same for any number of threads.
  void examine() {
    struct Examined {
      SourceFile& file;
      std::string given;        // the bytes of a row of a table
      std::size_t n_bytes = 0;  // of `given`; nothing else is kept
      ChannelSums sums{};
    };
    std::size_t n_given = 0, n_done = 0;
    TableImageReader rows(source_.tables);
    const auto next = [&]() -> std::unique_ptr<Examined> {
      if (n_given == source_.files.size()) return nullptr;
      SourceFile& file = source_.files[n_given++];
      std::string given = rows.read(file);
      const std::size_t n_bytes = given.size();
      return std::make_unique<Examined>(Examined{file, std::move(given), n_bytes});
    };
    Pool<FileDecoder> decoders;
    const auto decode = [&](Examined& examined) {
      auto decoder = decoders.lend();
      SourceFile& file = examined.file;
      if (!decoder->open(file, options_.short_side, examined.given)) return;
      const int channels = requested_channels_ > 0 ? requested_channels_ : file.is_grey ? 1 : 3;
      const auto pixels = decoder->decode(file, channels);
      if (!file.bad.empty()) return;
      examined.sums = ChannelSums(static_cast<std::size_t>(channels));
      examined.sums.add(pixels.data(), static_cast<std::int64_t>(file.stored_pixels()));
    };
    process_batches<Examined>(0, next, decode, [&](const Examined& examined) {
      (examined.sums.channels() == 1 ? grey_sums_ : colour_sums_).add(examined.sums);
      if (n_done++ % kFilesPerUpdate == 0) report_progress(n_done);
    });
  }

  void skip_bad_files() {
    for (const SourceFile& file : source_.files)
      if (!file.bad.empty()) skipped_.push_back(fmt::format("{}: {}", file.path, file.bad));
    if (skipped_.empty()) return;
    if (!options_.skip_bad) {
      const auto listed = std::span(skipped_).first(std::min(skipped_.size(), kMaxListed));
      const std::string more =
          skipped_.size() > listed.size() ? fmt::format("\n  and {} more", skipped_.size() - listed.size()) : "";
      fail(ErrorCode::data_source, "{} of {} images cannot be decoded; --skip-bad skips them:\n  {}{}", skipped_.size(),
           source_.files.size(), fmt::join(listed, "\n  "), more);
    }
    std::erase_if(source_.files, [](const SourceFile& f) { return !f.bad.empty(); });
    require(!source_.files.empty(), ErrorCode::data_source,
            "none of the images of {} can be decoded; the first one is {}", options_.source, skipped_.front());
  }

  void choose_channels(ImportResult& result) {
    const bool all_grey = std::ranges::all_of(source_.files, &SourceFile::is_grey);
    channels_ = requested_channels_ > 0 ? requested_channels_ : all_grey ? 1 : 3;
    if (requested_channels_ == 0 && all_grey)
      result.channels = "1, since all images are grey; --channels 3 stores three";
  }

  /// "PNG", "JPEG and PNG"
  std::string formats() const {
    const auto is_png = [](const SourceFile& f) { return f.format == ImageFormat::png; };
    if (std::ranges::none_of(source_.files, is_png)) return name_of(ImageFormat::jpeg);
    const char* png = name_of(ImageFormat::png);
    if (std::ranges::all_of(source_.files, is_png)) return png;
    return fmt::format("{} and {}", name_of(ImageFormat::jpeg), png);
  }

  void choose_storage(ImportResult& result) {
    const SourceFile& first = source_.files.front();
    const auto differs = std::ranges::find_if(
        source_.files, [&](const SourceFile& f) { return f.height != first.height || f.width != first.width; });
    const bool one_size = differs == source_.files.end();
    for (const SourceFile& f : source_.files) {
      decoded_bytes_ += static_cast<std::uint64_t>(channels_) * f.stored_pixels();
      encoded_bytes_ += f.n_bytes;
    }
    if (options_.short_side > 0) {
      form_ = Form::regions;
      result.storage = fmt::format("{:.1f} MiB decoded, with a shorter side of at most {} pixels (as requested)",
                                   mebibytes(decoded_bytes_), options_.short_side);
      return;
    }
    require(
        one_size || options_.storage != ImageStorage::decoded, ErrorCode::usage,
        "--store decoded requires images of one size, but {} has {} x {} pixels (width, height) and {} has {} x {}: "
        "add --short-side 256, which keeps the aspect ratio of each, or use --store encoded, which keeps the bytes of "
        "the files",
        first.path, first.width, first.height, differs->path, differs->width, differs->height);
    const bool automatic = options_.storage == ImageStorage::automatic;
    const bool decoded =
        options_.storage == ImageStorage::decoded || (automatic && one_size && decoded_bytes_ <= kMaxDecodedBytes);
    form_ = decoded ? Form::one_size : Form::encoded;
    const char* why = !automatic ? "as requested"
                      : decoded ? "the images have one size and are small; --store encoded keeps the bytes of the files"
                      : !one_size ? "the images have several sizes"
                                  : "decoded images would be large; --store decoded stores them";
    result.storage = fmt::format("{:.1f} MiB {} ({})", mebibytes(decoded ? decoded_bytes_ : encoded_bytes_),
                                 decoded ? "decoded" : fmt::format("of {} bytes", formats()), why);
  }

  void write(ImportResult& result) {
    const SourceFile& first = source_.files.front();
    const auto n = static_cast<std::int64_t>(source_.files.size());
    result.samples_per_class.assign(source_.classes.size(), 0);
    const bool one_size = std::ranges::all_of(source_.files, [&](const SourceFile& f) {
      return f.stored_height == first.stored_height && f.stored_width == first.stored_width;
    });
    ChannelSums sums(static_cast<std::size_t>(channels_));
    if (channels_ == 3) sums.add(colour_sums_);
    sums.add(grey_sums_);
    ImageSetInfo& info = result.info = describe_import(options_, n, source_.classes, sums);
    info.height = one_size ? first.stored_height : 0;
    info.width = one_size ? first.stored_width : 0;
    ImageFileWriter writer =
        form_ == Form::one_size
            ? ImageFileWriter(options_.output, options_.replace, n, first.height, first.width, channels_,
                              options_.placement)
            : ImageFileWriter(options_.output, options_.replace, n,
                              form_ == Form::regions ? decoded_bytes_ : encoded_bytes_, options_.placement);
    struct Image {
      const SourceFile* examined = nullptr;
      std::size_t n_bytes = 0;
      std::string given{};                // the bytes of a row of a table
      std::vector<std::uint8_t> bytes{};  // that will be stored
    };
    std::size_t n_given = 0, n_written = 0;
    TableImageReader rows(source_.tables);
    const auto next = [&]() -> std::unique_ptr<Image> {
      if (n_given == source_.files.size()) return nullptr;
      const SourceFile& file = source_.files[n_given++];
      return std::make_unique<Image>(Image{
          &file, form_ == Form::encoded ? file.n_bytes : static_cast<std::uint64_t>(channels_) * file.stored_pixels(),
          rows.read(file)});
    };
    Pool<FileDecoder> decoders;
    const auto read = [&](Image& image) {
      auto decoder = decoders.lend();
      SourceFile file = *image.examined;
      std::span<const std::uint8_t> bytes;
      if (decoder->open(file, options_.short_side, image.given))
        bytes = form_ == Form::encoded ? decoder->bytes() : decoder->decode(file, channels_);
      require(file.bad.empty() && file.n_bytes == image.examined->n_bytes && file.height == image.examined->height &&
                  file.width == image.examined->width,
              ErrorCode::data_changed, "{} changed during the import", file.path);
      image.bytes.assign(bytes.begin(), bytes.end());
    };
    process_batches<Image>(0, next, read, [&](const Image& image) {
      const SourceFile& file = *image.examined;
      if (form_ == Form::one_size)
        writer.append(image.bytes, std::span(&file.label, 1));
      else if (form_ == Form::encoded)
        writer.append_encoded(image.bytes, file.height, file.width, file.label);
      else
        writer.append_pixels(image.bytes, file.stored_height, file.stored_width, file.label);
      ++result.samples_per_class[static_cast<std::size_t>(file.label)];
      if (++n_written % kFilesPerUpdate == 0) report_progress(source_.files.size() + n_written);
    });
    std::string description = source_.description;
    if (options_.per_class > 0) description += fmt::format("; the first {} of each class", options_.per_class);
    if (options_.limit > 0) description += fmt::format("; the first {}", options_.limit);
    if (!skipped_.empty()) description += fmt::format("; {} that cannot be decoded left out", skipped_.size());
    writer.finish(info, description);
    result.files = {options_.source};
    result.size_bytes = fs::file_size(options_.output);
    result.skipped = skipped_;
  }

  void report_progress(std::size_t done) const {
    if (progress_) progress_(static_cast<std::int64_t>(done), 2 * static_cast<std::int64_t>(source_.files.size()));
  }

  const ImageFolderOptions& options_;
  const ImportProgress& progress_;
  ImageSource source_;
  int requested_channels_ = 0;  // 0: as in the images
  int channels_ = 3;
  ChannelSums grey_sums_{1}, colour_sums_{3};
  std::vector<std::string> skipped_;
  std::uint64_t decoded_bytes_ = 0, encoded_bytes_ = 0;  // of all images
  Form form_ = Form::encoded;
};

ImportResult import_from(const ImageFolderOptions& options, const ImportProgress& progress,
                         ImageSource (*list)(const ImageFolderOptions&)) {
  check_options(options);
  require(options.short_side == 0 || options.storage != ImageStorage::encoded, ErrorCode::usage,
          "--short-side resizes images, but --store encoded keeps the bytes of their files: use --store decoded");
  check_output(options.output, options.replace);  // before the long pass
  return Import(options, progress, list(options)).run();
}

}  // namespace

ImportResult import_image_folder(const ImageFolderOptions& options, const ImportProgress& progress) {
  return import_from(options, progress, list_image_folder);
}

ImportResult import_webdataset(const ImageFolderOptions& options, const ImportProgress& progress) {
  return import_from(options, progress, list_webdataset);
}

ImportResult import_tiny_imagenet(const ImageFolderOptions& options, const ImportProgress& progress) {
  return import_from(options, progress, list_tiny_imagenet);
}

}  // namespace lockstep::data

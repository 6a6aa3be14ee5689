// Import of CIFAR-10's binary batches. Source of the format: https://www.cs.toronto.edu/~kriz/cifar.html, "Binary
// version": records of 3073 bytes, a label (0 to 9), then 32 x 32 red, green and blue planes, each row-major.
#include <algorithm>
#include <array>
#include <filesystem>

#include "base/file.h"
#include "base/model_files.h"
#include "base/printable.h"
#include "data/file.h"
#include "data/image_file.h"
#include "data/import.h"
#include "lockstep/error.h"

namespace lockstep::data {
namespace {

namespace fs = std::filesystem;

constexpr int kSide = 32, kChannels = 3, kClasses = 10;
constexpr std::size_t kPlane = kSide * kSide;
constexpr std::size_t kImage = kPlane * kChannels;
constexpr std::size_t kRecord = 1 + kImage;
constexpr std::size_t kBatchRecords = 500;
constexpr int kTrainBatches = 5;
constexpr std::array<const char*, kClasses> kClassNames = {"airplane", "automobile", "bird",  "cat",  "deer",
                                                           "dog",      "frog",       "horse", "ship", "truck"};

/// Orders data_batch_2.bin before data_batch_10.bin.
bool natural_less(const std::string& a, const std::string& b) {
  return a.size() != b.size() ? a.size() < b.size() : a < b;
}

std::string batch_folder(const std::string& source) {
  const fs::path inner = fs::path(source) / "cifar-10-batches-bin";
  return fs::is_directory(inner) ? inner.string() : source;
}

std::vector<std::string> find_batches(const ImportOptions& options) {
  require(is_there(options.source), ErrorCode::data_source, "the source {} does not exist", options.source);
  if (!fs::is_directory(options.source)) return {options.source};
  const std::string folder = batch_folder(options.source);
  const bool train = options.split == "train";
  std::vector<std::string> names;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    if (name.ends_with(".bin") && (train ? name.starts_with("data_batch_") : name == "test_batch.bin"))
      names.push_back(entry.path().string());
  }
  std::sort(names.begin(), names.end(), natural_less);
  require(!names.empty(), ErrorCode::data_source,
          "{} contains no {}: expected the folder cifar-10-batches-bin of CIFAR-10's binary version", folder,
          train ? "data_batch_*.bin" : "test_batch.bin");
  return names;
}

/// A sentence about the train batches that a folder lacks. Empty if none is missing, or if a single file is imported.
std::string missing_batches(const ImportOptions& options, const std::vector<std::string>& found) {
  if (options.split != "train" || !fs::is_directory(options.source)) return "";
  std::vector<std::string> missing;
  for (int k = 1; k <= kTrainBatches; ++k) {
    const std::string name = fmt::format("data_batch_{}.bin", k);
    const auto is_it = [&](const std::string& path) { return fs::path(path).filename() == name; };
    if (std::ranges::none_of(found, is_it)) missing.push_back(name);
  }
  if (missing.empty()) return "";
  return fmt::format("{} lacks {} of CIFAR-10's {} train batches, so {} is incomplete: unpack the archive again",
                     batch_folder(options.source), fmt::join(missing, ", "), kTrainBatches, options.output);
}

std::string names_file(const std::string& first_batch) {
  return (fs::path(first_batch).parent_path() / "batches.meta.txt").string();
}

/// The names in batches.meta.txt next to the first batch, or the well-known names if there is no such file.
std::vector<std::string> read_class_names(const std::string& first_batch) {
  const std::string path = names_file(first_batch);
  const auto names = read_lines(path);
  if (!names) return {kClassNames.begin(), kClassNames.end()};
  require(names->size() == kClasses, ErrorCode::data_source, "{} must name {} classes, one per line", path, kClasses);
  return *names;
}

class Import {
 public:
  Import(const ImportOptions& options, const ImportProgress& progress)
      : options_(options), progress_(progress), batches_(find_batches(options)) {
    // All sources are checked before anything is written.
    for (const std::string& batch : batches_) {
      files_.emplace_back(batch);
      const std::uint64_t size = files_.back().size_bytes();
      require(size > 0 && size % kRecord == 0, ErrorCode::data_source,
              "{} has {} bytes, which is not a positive multiple of {} (a label and a 32 x 32 RGB image): it is "
              "truncated or not CIFAR-10's binary version",
              batch, size, kRecord);
      n_source_ += static_cast<std::int64_t>(size / kRecord);
    }
    require_no_input(options.output, batches_);
    require_no_input(options.output, std::array{names_file(batches_.front())});
    n_requested_ = options.per_class > 0 ? options.per_class * kClasses : options.limit > 0 ? options.limit : n_source_;
    require(n_requested_ <= n_source_, ErrorCode::data_range, "{} samples are requested, but {} contains {}",
            n_requested_, options.source, n_source_);
  }

  ImportResult run() {
    ImageFileWriter writer(options_.output, options_.replace, n_requested_, kSide, kSide, kChannels,
                           options_.placement);
    std::vector<std::uint8_t> images;
    std::vector<std::int32_t> labels;
    std::vector<std::uint8_t> records(kBatchRecords * kRecord);
    for (const InputFile& file : files_) {
      const std::uint64_t n = file.size_bytes() / kRecord;
      for (std::uint64_t first = 0; first < n && n_imported_ < n_requested_; first += kBatchRecords) {
        const auto m = static_cast<std::size_t>(std::min<std::uint64_t>(kBatchRecords, n - first));
        file.read(first * kRecord, std::as_writable_bytes(std::span(records).first(m * kRecord)),
                  fmt::format("records {} to {}", first, first + m));
        images.clear();
        labels.clear();
        for (std::size_t i = 0; i < m; ++i) take(file, first + i, records.data() + i * kRecord, images, labels);
        writer.append(images, labels);
        n_read_ += static_cast<std::int64_t>(m);
        if (progress_) progress_(n_read_, n_source_);
      }
    }
    check_balance();
    return finish(writer);
  }

 private:
  /// Counts a record, and appends it to images and labels if it is requested.
  void take(const InputFile& file, std::uint64_t index, const std::uint8_t* record, std::vector<std::uint8_t>& images,
            std::vector<std::int32_t>& labels) {
    const int label = record[0];
    require(label < kClasses, ErrorCode::data_source, "{}: record {} has label {}, but CIFAR-10 has labels 0 to {}",
            file.path(), index, label, kClasses - 1);
    auto& count = per_class_[static_cast<std::size_t>(label)];
    if (n_imported_ == n_requested_ || (options_.per_class > 0 && count == options_.per_class)) return;
    ++count;
    ++n_imported_;
    labels.push_back(label);
    const std::size_t begin = images.size();
    images.resize(begin + kImage);
    for (std::size_t c = 0; c < kChannels; ++c)
      for (std::size_t i = 0; i < kPlane; ++i) images[begin + i * kChannels + c] = record[1 + c * kPlane + i];
    sums_.add(images.data() + begin, kPlane);
  }

  void check_balance() const {
    if (options_.per_class == 0) return;
    for (std::size_t k = 0; k < kClasses; ++k)
      require(per_class_[k] == options_.per_class, ErrorCode::data_range,
              "{} samples of each class are requested, but {} contains {} of class {} ({})", options_.per_class,
              options_.source, per_class_[k], k, kClassNames[k]);
  }

  ImportResult finish(ImageFileWriter& writer) {
    ImportResult result;
    result.missing = missing_batches(options_, batches_);
    result.info = describe_import(options_, n_imported_, read_class_names(batches_.front()), sums_);
    result.info.height = result.info.width = kSide;
    for (const std::string& batch : batches_) result.files.push_back(fs::path(batch).filename().string());
    std::string source = fmt::format("CIFAR-10, binary version: {}", fmt::join(result.files, ", "));
    if (options_.per_class > 0) source += fmt::format("; the first {} of each class", options_.per_class);
    if (options_.per_class == 0 && options_.limit > 0) source += fmt::format("; the first {}", options_.limit);
    writer.finish(result.info, source);
    result.samples_per_class = per_class_;
    result.size_bytes = fs::file_size(options_.output);
    return result;
  }

  const ImportOptions& options_;
  const ImportProgress& progress_;
  std::vector<std::string> batches_;
  std::vector<InputFile> files_;
  std::int64_t n_source_ = 0, n_requested_ = 0, n_read_ = 0, n_imported_ = 0;
  std::vector<std::int64_t> per_class_ = std::vector<std::int64_t>(kClasses, 0);
  ChannelSums sums_;
};

}  // namespace

ImportResult import_cifar10(const ImportOptions& options, const ImportProgress& progress) {
  require(options.split == "train" || options.split == "test", ErrorCode::usage,
          "the split of CIFAR-10 is train or test, not '{}'", options.split);
  check_options(options);
  const int channels = requested_channels(options);
  require(channels == 0 || channels == kChannels, ErrorCode::usage,
          "the images of CIFAR-10 have {} channels, but {} is requested", kChannels, channels);
  return Import(options, progress).run();
}

}  // namespace lockstep::data

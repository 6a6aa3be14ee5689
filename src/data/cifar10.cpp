// Import of CIFAR-10's binary batches. Source of the format: https://www.cs.toronto.edu/~kriz/cifar.html, "Binary
// version": records of 3073 bytes, a label (0 to 9), then 32 x 32 red, green and blue planes, each row-major.
#include <algorithm>
#include <array>
#include <filesystem>

#include "base/file.h"
#include "base/model_files.h"
#include "data/file.h"
#include "data/import.h"
#include "lockstep/error.h"

namespace lockstep::data {
namespace {

namespace fs = std::filesystem;

constexpr int kSide = 32, kChannels = 3, kClasses = 10;
constexpr std::size_t kPlane = kSide * kSide;
constexpr std::size_t kImage = kPlane * kChannels;
constexpr std::size_t kRecord = 1 + kImage;
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

}  // namespace

ImportResult import_cifar10(const ImportOptions& options, const ImportProgress& progress) {
  require(options.split == "train" || options.split == "test", ErrorCode::usage,
          "the split of CIFAR-10 is train or test, not '{}'", options.split);
  ImageRecords records{.height = kSide,
                       .width = kSide,
                       .channels = kChannels,
                       .class_names = {},
                       .format = "CIFAR-10, binary version",
                       .files = find_batches(options),
                       .read = {}};
  records.class_names = read_class_names(records.files.front());
  require_no_input(options.output, std::array{names_file(records.files.front())});
  std::vector<InputFile> files;
  std::vector<std::int64_t> first;  // record of each file
  for (const std::string& batch : records.files) {
    files.emplace_back(batch);
    first.push_back(records.n);
    const std::uint64_t size = files.back().size_bytes();
    require(size > 0 && size % kRecord == 0, ErrorCode::data_source,
            "{} has {} bytes, which is not a positive multiple of {} (a label and a 32 x 32 RGB image): it is "
            "truncated or not CIFAR-10's binary version",
            batch, size, kRecord);
    records.n += static_cast<std::int64_t>(size / kRecord);
  }
  records.read = [&](std::int64_t i, std::span<std::uint8_t> image) -> std::int32_t {
    const auto k = static_cast<std::size_t>(std::ranges::upper_bound(first, i) - first.begin() - 1);
    const auto index = static_cast<std::uint64_t>(i - first[k]);
    std::array<std::uint8_t, kRecord> record{};
    files[k].read(index * kRecord, std::as_writable_bytes(std::span(record)), fmt::format("record {}", index));
    require(record[0] < kClasses, ErrorCode::data_source, "{}: record {} has label {}, but CIFAR-10 has labels 0 to {}",
            files[k].path(), index, record[0], kClasses - 1);
    for (std::size_t c = 0; c < kChannels; ++c)
      for (std::size_t p = 0; p < kPlane; ++p) image[p * kChannels + c] = record[1 + c * kPlane + p];
    return record[0];
  };
  ImportResult result = import_records(options, progress, records);
  result.missing = missing_batches(options, records.files);
  return result;
}

}  // namespace lockstep::data

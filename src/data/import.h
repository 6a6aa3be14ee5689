// Imports of image sets: CIFAR-10; MNIST; folders of JPEG and PNG files, as for torchvision's ImageFolder; tar archives
// of them, as for WebDataset; Tiny ImageNet as it is distributed.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "data/image_file.h"
#include "data/image_set.h"

namespace lockstep::data {

struct ImportOptions {
  std::string source, output;
  std::string split = "train";           // train, val or test
  std::int64_t per_class = 0;            // only the first samples of each class; 0: all
  std::int64_t limit = 0;                // only the first samples; 0: all
  int channels = 0;                      // 1 or 3; 0: those of mean and stddev, otherwise those of the images
  std::vector<float> mean, stddev;       // for values in [0, 1]; empty: computed from the imported images
  std::vector<std::string> class_names;  // of the train split, if labels alone do not say which there are; may be empty
  bool replace = false;                  // replace an existing output
  Placement placement = kDefaultPlacement;
};

struct ImportResult {
  ImageSetInfo info;
  std::vector<std::string> files;  // files that were read, if they are few
  std::vector<std::int64_t> samples_per_class;
  std::uint64_t size_bytes = 0;      // of the output
  std::string storage;               // how the images are stored and why, if there is a choice
  std::string channels;              // how many and why, if the images decided it
  std::vector<std::string> skipped;  // one sentence per image that could not be decoded
  std::string missing;               // a sentence about a part of the source that is missing; empty: it is complete
};

/// `progress(done, total)` counts samples or other units of work.
using ImportProgress = std::function<void(std::int64_t done, std::int64_t total)>;

/// Imports CIFAR-10's binary batches. `source`: the folder cifar-10-batches-bin (or the folder that contains it), or
/// one .bin file. `split`: train (data_batch_*.bin) or test (test_batch.bin); for one .bin file it is only a name.
/// Samples keep the order of the files. The output appears only when it is complete.
ImportResult import_cifar10(const ImportOptions& options, const ImportProgress& progress);

/// Imports MNIST or a data set in the same format, such as Fashion-MNIST. `source`: a folder with
/// train-images-idx3-ubyte and train-labels-idx1-ubyte (`split` train) or t10k-... (test), or one file of images, whose
/// labels are beside it. Each may be compressed with gzip (.gz). The set has one channel, or three equal ones if they
/// are requested.
ImportResult import_mnist(const ImportOptions& options, const ImportProgress& progress);

enum class ImageStorage { automatic, decoded, encoded };

struct ImageFolderOptions : ImportOptions {
  ImageStorage storage = ImageStorage::automatic;
  int short_side = 0;     // images are stored decoded, with a shorter side of at most this many pixels; 0: as they are
  bool skip_bad = false;  // skip images that cannot be decoded instead of ending the import
  std::string field, label_field;  // of tables: the columns of images and labels; empty: found (image_tables.h)
};

/// Imports `source`/CLASS/**/*.jpg, .jpeg and .png, in upper or lower case. If no channels are requested, the set has
/// one channel if all of its images are grey, otherwise three. The folders are the classes, sorted by the bytes
/// of their names; the files of a class are sorted by path. Links to folders inside a class are not followed. Image
/// files of other formats count as files that cannot be decoded. Files whose name is not that of an image are ignored.
/// Throws usage if short_side is combined with encoded storage. A source that is a table, or a folder with files of
/// Parquet or Arrow, is read as list_table_images() says.
ImportResult import_image_folder(const ImageFolderOptions& options, const ImportProgress& progress);

/// Imports samples of tar archives: KEY.jpg, .jpeg or .png, with a label in KEY.cls, in the field "label" of KEY.json,
/// or in KEY.txt, where a key ends at the first dot of a name. `source`: an archive (.tar, .tar.gz, .tgz, .tar.zst), or
/// a folder with archives; if their names contain those of splits, those of `split`. Labels that are all numbers are
/// the numbers of the classes; otherwise they are the names of classes, which are sorted by their bytes.
/// options.class_names replaces the classes that were found. Compressed archives need space for their images in the
/// folder of the output.
ImportResult import_webdataset(const ImageFolderOptions& options, const ImportProgress& progress);

/// Imports the folder tiny-imagenet-200 (or the folder that contains it): train/WNID/**/*.JPEG, and val/images with its
/// labels in val/val_annotations.txt, or val sorted into folders like train. Classes are the lines of wnids.txt,
/// sorted, as ImageFolder numbers the folders of train, or else those folders. The set has three channels if no others
/// are requested.
ImportResult import_tiny_imagenet(const ImageFolderOptions& options, const ImportProgress& progress);

// ---- What the imports of image sets have in common ------------------------------------------------------------------

/// Sums over the channels of images. They are integers, so their order does not matter; 64 bits are enough for 2.8e14
/// pixels.
class ChannelSums {
 public:
  static constexpr std::size_t kMaxChannels = 3;

  explicit ChannelSums(std::size_t channels = kMaxChannels) : channels_(channels) {}
  std::size_t channels() const { return channels_; }

  /// `hwc`: (pixels, channels)
  void add(const std::uint8_t* hwc, std::int64_t n_pixels) {
    for (std::int64_t i = 0; i < n_pixels; ++i)
      for (std::size_t c = 0; c < channels_; ++c) {
        const std::uint32_t v = *hwc++;
        sum_[c] += v;
        sum_of_squares_[c] += v * v;
      }
    n_pixels_ += static_cast<std::uint64_t>(n_pixels);
  }
  /// A single channel is added to each of ours.
  void add(const ChannelSums& other) {
    for (std::size_t c = 0; c < channels_; ++c) {
      const std::size_t from = other.channels_ == 1 ? 0 : c;
      sum_[c] += other.sum_[from], sum_of_squares_[c] += other.sum_of_squares_[from];
    }
    n_pixels_ += other.n_pixels_;
  }

  /// For values in [0, 1].
  float mean(std::size_t c) const {
    return static_cast<float>(static_cast<double>(sum_[c]) / (255.0 * static_cast<double>(n_pixels_)));
  }
  /// Standard deviation of the population, as usual for images: sqrt(n * sum of squares - sum^2) / n.
  float stddev(std::size_t c) const {
    using Wide = unsigned __int128;
    const Wide scaled = Wide{n_pixels_} * sum_of_squares_[c] - Wide{sum_[c]} * sum_[c];
    return static_cast<float>(std::sqrt(static_cast<double>(scaled)) / (255.0 * static_cast<double>(n_pixels_)));
  }

 private:
  std::size_t channels_;
  std::array<std::uint64_t, kMaxChannels> sum_{}, sum_of_squares_{};
  std::uint64_t n_pixels_ = 0;
};

/// Labelled images of one size that are read one after the other.
struct ImageRecords {
  std::int64_t n = 0;
  int height = 0, width = 0, channels = 0;
  std::vector<std::string> class_names;
  std::string format;              // "CIFAR-10, binary version"
  std::vector<std::string> files;  // those with the images
  /// Reads record `i` into `image` (height, width, channels), and returns its label, which is that of a class.
  std::function<std::int32_t(std::int64_t i, std::span<std::uint8_t> image)> read;
};
/// Imports the records that the options select. The output appears only when it is complete.
ImportResult import_records(const ImportOptions& options, const ImportProgress& progress, const ImageRecords& records);

/// The lines of a file that are not empty, without white space at their ends; no value if it cannot be opened. Throws
/// data_source unless it is a text in UTF-8.
std::optional<std::vector<std::string>> read_lines(const std::string& path);
/// Throws usage unless mean and std are empty or have one possible value (for pixels in [0, 1]) per channel, and chunks
/// are at least as large as the alignment.
void check_options(const ImportOptions& options);
/// The channels that the options ask for, or that mean and std have; 0: neither.
int requested_channels(const ImportOptions& options);
/// What is recorded of the images, without their size. Mean and std are as given, otherwise from the sums. Throws
/// data_source if a standard deviation is 0.
ImageSetInfo describe_import(const ImportOptions& options, std::int64_t n_samples, std::vector<std::string> class_names,
                             const ChannelSums& sums);

}  // namespace lockstep::data

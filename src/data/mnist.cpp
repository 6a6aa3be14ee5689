// Import of MNIST's files, and of other data sets in their format, IDX: two bytes 0, the type of the values (8: uint8),
// the number of dimensions, each dimension (uint32, big-endian), then the values, row-major. Source:
// http://yann.lecun.com/exdb/mnist/.
#include <algorithm>
#include <array>
#include <filesystem>
#include <string_view>
#include <vector>

#include "base/file.h"
#include "base/model_files.h"
#include "data/archive.h"
#include "data/import.h"
#include "lockstep/error.h"

namespace lockstep::data {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kLastDigit = 9;
constexpr std::uint64_t kMaxSide = 1 << 12;    // pixels
constexpr std::uint64_t kMaxBytes = 2u << 30;  // of a file

struct Idx {
  std::vector<std::uint64_t> dims;
  std::vector<std::uint8_t> bytes;  // of the whole file
  const std::uint8_t* values() const { return bytes.data() + 4 + 4 * dims.size(); }
};

Idx read_idx(const std::string& path, std::size_t n_dims, const Scratch& scratch) {
  ArchiveMember whole{
      .name = path, .path = std::make_shared<std::string>(path), .place = {0, InputFile(path).size_bytes()}};
  if (path.ends_with(".gz")) {
    const auto members = read_archive(path, scratch, [](const std::string&) { return true; });
    require(members.size() == 1, ErrorCode::data_source, "{} contains {} files: expected one", path, members.size());
    whole = members.front();
  }
  require(whole.place.size_bytes <= kMaxBytes, ErrorCode::data_source, "{} has {} bytes: expected at most {}", path,
          whole.place.size_bytes, kMaxBytes);
  Idx out{.dims = {}, .bytes = std::vector<std::uint8_t>(whole.place.size_bytes)};
  InputFile(*whole.path).read(whole.place.offset, std::as_writable_bytes(std::span(out.bytes)), path);
  const std::array<std::uint8_t, 4> begin{0, 0, 8, static_cast<std::uint8_t>(n_dims)};
  const std::size_t head_bytes = 4 + 4 * n_dims;
  require(out.bytes.size() >= head_bytes && std::ranges::equal(begin, std::span(out.bytes).first(begin.size())),
          ErrorCode::data_source, "{} is not an IDX file of {} dimension(s): it must begin with the bytes 0, 0, 8, {}",
          path, n_dims, n_dims);
  std::uint64_t n_values = 1;
  for (std::size_t i = 1; i <= n_dims; ++i) {
    std::uint64_t dim = 0;
    for (const std::uint8_t byte : std::span(out.bytes).subspan(4 * i, 4)) dim = 256 * dim + byte;
    require(dim >= 1 && (i == 1 || dim <= kMaxSide), ErrorCode::data_source, "{}: a dimension of {} is not possible",
            path, dim);
    out.dims.push_back(dim);
    n_values *= dim;
  }
  require(out.bytes.size() - head_bytes == n_values, ErrorCode::data_source,
          "{} has {} bytes of values, but its header states {}: it is truncated or damaged", path,
          out.bytes.size() - head_bytes, n_values);
  return out;
}

/// The file of images: with and without .gz, as it is distributed and as torchvision stores it.
std::string find_images(const ImportOptions& options) {
  require(is_there(options.source), ErrorCode::data_source, "the source {} does not exist", options.source);
  if (!is_folder(options.source)) return options.source;
  const std::string name = options.split == "train" ? "train-images" : "t10k-images";
  for (const char* folder : {"", "raw/", "MNIST/raw/"})
    for (const char* end : {"-idx3-ubyte", ".idx3-ubyte", "-idx3-ubyte.gz", ".idx3-ubyte.gz"}) {
      const std::string path = (fs::path(options.source) / (folder + name + end)).string();
      if (is_there(path)) return path;
    }
  fail(ErrorCode::data_source, "{} contains no {}-idx3-ubyte, with or without .gz: expected the files of MNIST",
       options.source, name);
}

std::string labels_of(const std::string& images) {
  for (const auto& [from, to] : {std::pair{"images-idx3", "labels-idx1"}, std::pair{"images.idx3", "labels.idx1"}}) {
    std::string labels = images;
    const std::size_t at = labels.rfind(from);
    if (at == std::string::npos) continue;
    labels.replace(at, std::string_view(from).size(), to);
    require(is_there(labels), ErrorCode::data_source, "there is no {} with the labels of {}", labels, images);
    return labels;
  }
  fail(ErrorCode::data_source,
       "{}: expected a name that contains images-idx3, as that of its labels contains labels-idx1", images);
}

}  // namespace

ImportResult import_mnist(const ImportOptions& options, const ImportProgress& progress) {
  require(options.split == "train" || options.split == "test", ErrorCode::usage,
          "the split of MNIST is train or test, not '{}'", options.split);
  const std::string path = find_images(options), labels_path = labels_of(path);
  check_output(options.output, options.replace);
  require_no_input(options.output, std::array{labels_path});
  const Scratch scratch(options.output);
  const Idx images = read_idx(path, 3, scratch), labels = read_idx(labels_path, 1, scratch);
  require(images.dims[0] == labels.dims[0], ErrorCode::data_source, "{} has {} images, but {} has {} labels", path,
          images.dims[0], labels_path, labels.dims[0]);
  ImageRecords records{.n = static_cast<std::int64_t>(images.dims[0]),
                       .height = static_cast<int>(images.dims[1]),
                       .width = static_cast<int>(images.dims[2]),
                       .channels = 1,
                       .class_names = {},
                       .format = "MNIST's format",
                       .files = {path},
                       .read = {}};
  const std::size_t last = *std::max_element(labels.values(), labels.values() + records.n);
  for (std::size_t k = 0; k <= std::max(kLastDigit, last); ++k) records.class_names.push_back(std::to_string(k));
  records.read = [&](std::int64_t i, std::span<std::uint8_t> image) -> std::int32_t {
    std::copy_n(images.values() + static_cast<std::size_t>(i) * image.size(), image.size(), image.begin());
    return labels.values()[i];
  };
  return import_records(options, progress, records);
}

}  // namespace lockstep::data

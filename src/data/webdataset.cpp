// The samples of WebDataset: members of a tar archive whose names are the same up to the first dot.
#include <algorithm>
#include <charconv>
#include <filesystem>
#include <map>

#include "base/hub_cache.h"
#include "base/json.h"
#include "base/utf8.h"
#include "data/image_files.h"
#include "lockstep/error.h"

namespace lockstep::data {
namespace {

namespace fs = std::filesystem;

constexpr int kMaxLabel = (1 << 20) - 1;
constexpr std::uint64_t kMaxLabelBytes = 1u << 20;  // of a file with a label
constexpr std::size_t kManyNames = 1000;            // of classes

std::vector<std::string> list_archives(const ImportOptions& options) {
  require(is_there(options.source), ErrorCode::data_source, "the source {} does not exist", options.source);
  if (!is_folder(options.source)) return {options.source};
  std::vector<std::string> found =
      list_files(options.source, [](const fs::path& path) { return is_archive(path.string()); });
  // Folders of the Hub have all splits: imagenet1k-train-0000.tar, imagenet1k-validation-00.tar.
  const auto is_of = [&](const std::string& path, const std::string& split) {
    return path.find(split, options.source.size()) != std::string::npos;
  };
  const bool has_splits = std::ranges::any_of(found, [&](const std::string& path) {
    return is_of(path, "train") || is_of(path, "val") || is_of(path, "test");
  });
  if (has_splits) std::erase_if(found, [&](const std::string& path) { return !is_of(path, options.split); });
  require(!found.empty(), ErrorCode::data_source, "{} contains no archives (*.tar, *.tar.gz, *.tgz, *.tar.zst){}",
          options.source, has_splits ? " of the split " + options.split : "");
  return found;
}

/// "a/0001" and ".png" of "a/0001.png": a key ends at the first dot. Both are empty for names that begin with a dot.
std::pair<std::string, std::string> key_and_extension(const std::string& name) {
  const std::size_t begin = name.rfind('/') + 1, dot = name.find('.', begin);
  if (dot == std::string::npos || dot == begin) return {};
  std::string extension = name.substr(dot);
  std::ranges::transform(extension, extension.begin(), [](unsigned char c) { return std::tolower(c); });
  return {name.substr(0, dot), extension};
}

/// The text of a .cls or .txt, or the field "label" of a .json; empty if there is none.
std::string label_of(const ArchiveMember& member, const std::string& place, bool is_json) {
  require(member.place.size_bytes <= kMaxLabelBytes, ErrorCode::data_source, "{} has {} bytes: expected a label", place,
          member.place.size_bytes);
  std::string text = member.text();
  if (is_json) {
    const nlohmann::json object = parse_json(text, place, ErrorCode::data_source);
    const auto found = object.is_object() ? object.find("label") : object.end();
    const bool has_label = found != object.end() && (found->is_string() || found->is_number_integer());
    text = !has_label ? "" : found->is_string() ? found->get<std::string>() : found->dump();
  }
  constexpr const char* kWhite = " \t\r\n";
  text.erase(0, text.find_first_not_of(kWhite));
  text.erase(text.find_last_not_of(kWhite) + 1);
  require(is_utf8(text) && !text.starts_with('-'), ErrorCode::data_source,
          "{}: expected the name of a class in UTF-8, or its number from 0 on, found \"{}\"", place, text);
  return text;
}

/// The number that the whole text is; -1 if it is none.
int number(const std::string& text) {
  int value = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size() ? value : -1;
}

bool is_image(const std::string& extension) {
  return extension == ".jpg" || extension == ".jpeg" || extension == ".png";
}

/// Appends the samples of an archive, in its order, and their labels.
void add_archive(const std::string& path, ImageSource& source, std::vector<std::string>& labels) {
  constexpr std::array<std::string_view, 3> kLabels{".cls", ".json", ".txt"};  // the first one that there is counts
  const auto members = read_archive(path, *source.scratch, [&](const std::string& name) {
    const std::string extension = key_and_extension(name).second;
    return is_image(extension) || std::ranges::count(kLabels, extension) > 0;
  });
  struct Sample {
    const ArchiveMember* image = nullptr;
    std::array<std::string, kLabels.size()> labels;
  };
  std::vector<std::pair<std::string, Sample>> samples;
  std::map<std::string, std::size_t> known;
  for (const ArchiveMember& member : members) {
    const auto [key, extension] = key_and_extension(member.name);
    const std::string place = path + ": " + member.name;
    const auto [at, is_new] = known.emplace(key, samples.size());
    if (is_new) samples.emplace_back(key, Sample{});
    Sample& sample = samples[at->second].second;
    const auto kind = static_cast<std::size_t>(std::ranges::find(kLabels, extension) - kLabels.begin());
    if (kind < kLabels.size()) {
      sample.labels[kind] = label_of(member, place, extension == ".json");
    } else {
      require(!sample.image, ErrorCode::data_source, "{} is the second image of its sample", place);
      sample.image = &member;
    }
  }
  for (auto& [key, sample] : samples) {
    const auto label = std::ranges::find_if(sample.labels, [](const std::string& text) { return !text.empty(); });
    require(sample.image && label != sample.labels.end(), ErrorCode::data_source, "{}: {} has no {}", path, key,
            sample.image ? "label: expected one in a .cls or .txt, or in the field \"label\" of a .json"
                         : "image: expected a .jpg, .jpeg or .png");
    source.files.push_back(
        {.path = path + ": " + sample.image->name, .archive = sample.image->path, .place = sample.image->place});
    labels.push_back(std::move(*label));
  }
}

}  // namespace

ImageSource list_webdataset(const ImageFolderOptions& options) {
  ImageSource source;
  source.lists = list_archives(options);
  source.scratch = std::make_unique<Scratch>(options.output);
  source.description = "WebDataset " + source_name(options.source);
  source.classes = options.class_names;
  std::vector<std::string> labels;  // of source.files
  for (const std::string& path : source.lists) add_archive(path, source, labels);
  require(!labels.empty(), ErrorCode::data_source, "{} contains no samples", options.source);

  const bool all_numbers = std::ranges::all_of(labels, [](const std::string& label) { return number(label) >= 0; });
  int last = 0;
  for (std::string& label : labels)
    if (all_numbers) last = std::max(last, number(label)), label = std::to_string(number(label));
  require(last <= kMaxLabel, ErrorCode::data_source, "{} has the label {}: expected at most {}", options.source, last,
          kMaxLabel);
  if (source.classes.empty() && all_numbers) {
    for (int k = 0; k <= last; ++k) source.classes.push_back(std::to_string(k));
  } else if (source.classes.empty()) {
    source.classes = labels;
    std::ranges::sort(source.classes);
    source.classes.erase(std::ranges::unique(source.classes).begin(), source.classes.end());
    require(source.classes.size() <= kManyNames || 2 * source.classes.size() <= labels.size(), ErrorCode::data_source,
            "the {} images of {} have {} different labels, which are descriptions rather than names of classes",
            labels.size(), options.source, source.classes.size());
  }
  std::map<std::string, std::int32_t> numbers;
  for (std::size_t k = 0; k < source.classes.size(); ++k)
    numbers.emplace(source.classes[k], static_cast<std::int32_t>(k));
  for (std::size_t i = 0; i < labels.size(); ++i) {
    const auto found = numbers.find(labels[i]);
    require(found != numbers.end(), ErrorCode::data_source,
            "{} has the label {}, which is not a class of the data set of --statistics-from", source.files[i].path,
            labels[i]);
    source.files[i].label = found->second;
  }
  return source;
}

}  // namespace lockstep::data

#include "data/source_files.h"

#include <fmt/ranges.h>
#include <algorithm>
#include <array>
#include <cctype>
#include <filesystem>
#include <map>
#include <set>
#include <utility>

#include "base/json.h"
#include "data/archive.h"
#include "data/byte_source.h"
#include "data/file.h"
#include "lockstep/error.h"

namespace lockstep::data {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kTrain = "train";

/// The words for a split, as in `datasets`; the first is its name.
constexpr std::array<std::array<std::string_view, 4>, 3> kSplits{
    {{kTrain, "training"}, {"validation", "valid", "val", "dev"}, {"test", "testing", "eval", "evaluation"}}};

/// Empty unless it is one of the words.
std::string split_named(std::string_view word) {
  for (const auto& words : kSplits)
    if (!word.empty() && std::ranges::find(words, word) != words.end()) return std::string(words.front());
  return "";
}

/// The first split among the words of a text, which are separated by "-._ /" and digits.
std::string split_mentioned(std::string_view text) {
  constexpr std::string_view kBetween = "-._ /0123456789";
  while (true) {
    text.remove_prefix(std::min(text.find_first_not_of(kBetween), text.size()));
    if (text.empty()) return "";
    const std::size_t n = std::min(text.find_first_of(kBetween), text.size());
    if (std::string found = split_named(text.substr(0, n)); !found.empty()) return found;
    text.remove_prefix(n);
  }
}

/// "train" of "train-00000-of-00002.parquet"; empty if the file is no part of several.
std::string_view name_of_parts(std::string_view file) {
  constexpr std::size_t kDigits = 5;
  const auto is_number = [](std::string_view text) {
    return text.size() == kDigits && std::ranges::all_of(text, [](unsigned char c) { return std::isdigit(c) != 0; });
  };
  const std::size_t of = file.find("-of-");
  if (of == std::string_view::npos || of <= kDigits) return {};
  if (!is_number(file.substr(of - kDigits, kDigits)) || !is_number(file.substr(of + 4, kDigits))) return {};
  return file.substr(0, of - kDigits - 1);
}

/// The part of a folder written by save_to_disk that its state.json describes.
struct SavedFolder {
  std::string split;
  std::set<std::string> files;
};
SavedFolder read_state(const fs::path& path, const fs::path& source) {
  constexpr std::uint64_t kMaxBytes = 16u << 20;
  const nlohmann::json state =
      parse_json(read_file(path.string(), kMaxBytes, ErrorCode::data_source), path.string(), ErrorCode::data_source);
  SavedFolder out;
  try {
    for (const auto& file : state.at("_data_files")) out.files.insert(file.at("filename").get<std::string>());
    const nlohmann::json split = state.value("_split", nlohmann::json());
    if (split.is_string()) out.split = split.get<std::string>();
  } catch (const nlohmann::json::exception&) {
    fail(ErrorCode::data_source, "{}: expected the list \"_data_files\", as save_to_disk of `datasets` writes it",
         path.string());
  }
  if (const fs::path folder = path.parent_path(); !fs::equivalent(folder, source))
    out.split = folder.filename().string();
  return out;
}

ListedFile listed(const std::string& path) {
  const std::string head = head_of(InputFile(path));
  return {.path = path,
          .table = format_of(path, head),
          .is_compressed = is_compressed(head),
          .is_archive = is_archive(path)};
}

/// The smaller, the sooner it is preferred; kIgnored: not a file of a data set.
constexpr int kParquet = 0, kArrow = 1, kText = 2, kSeparated = 3, kArchive = 4, kIgnored = 5;
int group_of(const fs::path& path) {
  if (is_archive(path.string())) return kArchive;
  const bool is_compressed = path.extension() == ".gz" || path.extension() == ".zst";
  const std::string name = path.extension().string(), inner = path.stem().extension().string();
  if (name == ".parquet") return kParquet;
  if (name == ".arrow") return kArrow;
  if (name == ".txt" || name == ".jsonl" ||
      (is_compressed && (inner == ".txt" || inner == ".jsonl" || inner == ".json")))
    return kText;
  const std::string& separated = is_compressed ? inner : name;
  return separated == ".csv" || separated == ".tsv" ? kSeparated : kIgnored;
}

/// The split that is meant by --split: "val" is "validation".
std::string canonical(const std::string& split) {
  const std::string named = split_named(split);
  return named.empty() ? split : named;
}

std::string list_of_splits(const std::map<std::string, std::vector<std::string>>& splits) {
  std::vector<std::string> out;
  for (const auto& [name, paths] : splits)
    out.push_back(fmt::format("{} ({} file{})", name, paths.size(), paths.size() == 1 ? "" : "s"));
  return fmt::format("{}", fmt::join(out, ", "));
}

/// Throws if parts of one split are in several folders: those are different data sets.
void require_one_set(const std::string& source, const std::string& split, const std::vector<std::string>& paths) {
  std::set<std::string> folders;
  for (const std::string& path : paths)
    if (!name_of_parts(fs::path(path).filename().string()).empty())
      folders.insert(fs::path(path).parent_path().string());
  require(folders.size() <= 1, ErrorCode::data_source,
          "{} contains several data sets that have a split {}: give the folder of one of them, {}", source, split,
          fmt::join(folders, ", "));
}

SourceFiles list_folder(const std::string& source, const std::string& wanted) {
  const std::vector<std::string> all = list_files(
      source, [](const fs::path& path) { return group_of(path) != kIgnored || path.filename() == "state.json"; });
  int group = kIgnored;
  bool is_plain = false;  // contains text that is not compressed
  std::map<std::string, SavedFolder> saved;
  for (const std::string& path : all) {
    group = std::min(group, group_of(path));
    is_plain = is_plain || fs::path(path).extension() == ".txt" || fs::path(path).extension() == ".jsonl";
    if (fs::path(path).filename() == "state.json") saved.emplace(fs::path(path).parent_path().string(), SavedFolder());
  }
  std::map<std::string, std::vector<std::string>> splits;
  for (const std::string& path : all) {
    if (group_of(path) != group || group == kIgnored) continue;
    std::string split = split_of(fs::path(path).lexically_relative(source).string());
    const fs::path folder = fs::path(path).parent_path();
    if (const auto found = saved.find(folder.string()); group == kArrow && found != saved.end()) {
      if (found->second.files.empty()) found->second = read_state(folder / "state.json", source);
      if (!found->second.files.contains(fs::path(path).filename().string())) continue;  // a cache
      split = found->second.split;
    }
    splits[split.empty() ? std::string(kTrain) : canonical(split)].push_back(path);
  }
  require(!splits.empty(), ErrorCode::data_source,
          "{} contains no files of text (*.txt, *.jsonl, *.csv, *.tsv, *.parquet, *.arrow, *.tar; also *.jsonl.gz "
          "and *.jsonl.zst)",
          source);

  SourceFiles out;
  if (wanted.empty() && group == kText && is_plain) {
    for (const auto& [name, paths] : splits)
      for (const std::string& path : paths) out.files.push_back(listed(path));
    std::ranges::sort(out.files, {}, &ListedFile::path);
    return out;
  }
  const bool is_only = wanted.empty() && splits.size() == 1;
  out.split = is_only ? splits.begin()->first : wanted.empty() ? std::string(kTrain) : canonical(wanted);
  const auto found = splits.find(out.split);
  require(found != splits.end(), ErrorCode::data_source, "{} has no split {}, but {}: choose with --split", source,
          out.split, list_of_splits(splits));
  require_one_set(source, out.split, found->second);
  for (const std::string& path : found->second) out.files.push_back(listed(path));
  return out;
}

}  // namespace

std::string split_of(const std::string& relative_path) {
  const fs::path path(relative_path);
  const std::string file = path.filename().string();
  const std::string_view name = name_of_parts(file);
  const auto is_in_word = [](unsigned char c) { return std::isalnum(c) != 0 || c == '_' || c == '.'; };
  if (!name.empty() && std::ranges::all_of(name, is_in_word)) return canonical(std::string(name));
  const std::string mentioned = split_mentioned(file);
  return mentioned.empty() ? split_mentioned(path.parent_path().string()) : mentioned;
}

bool contains_tables(const std::string& source) {
  const auto is_table = [](const fs::path& path) { return group_of(path) <= kArrow; };
  std::error_code ignored;
  if (fs::is_directory(source, ignored)) return !list_readable_files(source, is_table).files.empty();
  return fs::is_regular_file(source, ignored) && listed(source).table != TableFormat::none;
}

SourceFiles list_source(const std::string& source, const std::string& split) {
  std::error_code ignored;
  if (fs::is_directory(source, ignored)) return list_folder(source, split);
  require(fs::exists(source, ignored) || ignored, ErrorCode::data_source, "there is no text {}", source);
  const std::string own = split_of(fs::path(source).filename().string());
  require(split.empty() || own.empty() || own == canonical(split), ErrorCode::data_source,
          "{} has the split {} by its name, not {}: name another file, or leave out --split", source, own, split);
  return {.files = {listed(source)}, .split = split.empty() ? "" : canonical(split)};
}

}  // namespace lockstep::data

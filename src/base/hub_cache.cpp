#include "base/hub_cache.h"

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <filesystem>
#include <string_view>
#include <utility>

#include "base/file.h"
#include "lockstep/error.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kModels = "models--", kDatasets = "datasets--", kSeparator = "--";
constexpr std::uint64_t kMaxRefBytes = 4096;

fs::path cache() {
  const auto given_in = [](const char* name) {
    const char* const value = std::getenv(name);
    return value != nullptr && *value != '\0' ? value : nullptr;
  };
  if (const char* given = given_in("HF_HUB_CACHE")) return given;
  if (const char* home = given_in("HF_HOME")) return fs::path(home) / "hub";
  if (const char* home = given_in("XDG_CACHE_HOME")) return fs::path(home) / "huggingface/hub";
  const char* const home = given_in("HOME");
  return fs::path(home != nullptr ? home : "/") / ".cache/huggingface/hub";
}

/// "organisation/name" and the revision.
std::pair<std::string, std::string> parts_of(const std::string& text) {
  const auto at = text.find('@');
  return {text.substr(0, at), at == std::string::npos ? "main" : text.substr(at + 1)};
}

/// Names and revisions consist of these.
bool is_allowed(unsigned char c) { return std::isalnum(c) || c == '-' || c == '_' || c == '.' || c == '/'; }

bool is_revision(const std::string& text) {
  return !text.empty() && text.front() != '/' && text.find("..") == std::string::npos &&
         std::ranges::all_of(text, is_allowed);
}

/// "organisation/name" for the folder "models--organisation--name"; empty if the folder is not that of a repository.
std::string repository_of(std::string folder, std::string_view prefix) {
  const auto between = folder.find(kSeparator, prefix.size());
  if (!folder.starts_with(prefix) || between == std::string::npos) return "";
  folder = folder.substr(prefix.size()).replace(between - prefix.size(), kSeparator.size(), "/");
  return is_hub_name(folder) ? folder : "";
}

std::string find_in_cache(const std::string& path, std::string_view prefix) {
  const auto [name, revision] = parts_of(path);
  if (!is_hub_name(name) || !is_revision(revision) || is_there(path)) return path;
  const auto slash = name.find('/');
  const fs::path repository =
      cache() / (std::string(prefix) + name.substr(0, slash) + std::string(kSeparator) + name.substr(slash + 1));
  std::string commit = revision;
  if (const fs::path ref = repository / "refs" / revision; is_there(ref)) {
    commit = read_file(ref.string(), kMaxRefBytes);
    commit.erase(std::ranges::find_if(commit, [](unsigned char c) { return std::isspace(c); }), commit.end());
  }
  const fs::path snapshot = repository / "snapshots" / commit;
  return is_revision(commit) && is_folder(snapshot) ? snapshot.string() : path;
}

}  // namespace

bool is_hub_name(const std::string& text) {
  const auto slash = text.find('/');
  return slash != std::string::npos && slash > 0 && slash + 1 < text.size() &&
         text.find('/', slash + 1) == std::string::npos && text.front() != '.' && std::ranges::all_of(text, is_allowed);
}

std::string find_model(const std::string& path) { return find_in_cache(path, kModels); }
std::string find_dataset(const std::string& path) { return find_in_cache(path, kDatasets); }

std::string hub_name_of(const std::string& path) {
  for (const fs::path& part : fs::path(path))
    if (std::string name = repository_of(part.string(), kModels); !name.empty()) return name;
  return "";
}

std::string source_name(const std::string& path) {
  const fs::path whole(path);
  for (auto part = whole.begin(); part != whole.end(); ++part) {
    std::string name = repository_of(part->string(), kDatasets);
    if (name.empty() || ++part == whole.end() || *part != "snapshots" || ++part == whole.end()) continue;
    name += "@" + part->string();
    while (++part != whole.end()) name += "/" + part->string();
    return name;
  }
  return (whole.has_filename() ? whole : whole.parent_path()).filename().string();
}

std::string hub_remedy(const std::string& path, HubKind kind) {
  const auto [name, revision] = parts_of(path);
  if (!is_hub_name(name) || !is_revision(revision)) return "";
  const char* const word = kind == HubKind::model ? "model" : "data set";
  return fmt::format(
      "; if it is a {} of the Hugging Face Hub, it is not in {}: fetch it on a machine with a network, with `hf "
      "download {}{}{}` (some {}s also need `hf auth login` and an accepted licence)",
      word, cache().string(), kind == HubKind::model ? "" : "--repo-type dataset ", name,
      revision == "main" ? "" : " --revision " + revision, word);
}

}  // namespace lockstep

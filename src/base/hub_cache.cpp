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

constexpr std::string_view kModels = "models--", kSeparator = "--";
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

}  // namespace

bool is_hub_name(const std::string& text) {
  const auto slash = text.find('/');
  return slash != std::string::npos && slash > 0 && slash + 1 < text.size() &&
         text.find('/', slash + 1) == std::string::npos && text.front() != '.' && std::ranges::all_of(text, is_allowed);
}

std::string find_model(const std::string& path) {
  const auto [name, revision] = parts_of(path);
  if (!is_hub_name(name) || !is_revision(revision) || is_there(path)) return path;
  const auto slash = name.find('/');
  const fs::path model =
      cache() / (std::string(kModels) + name.substr(0, slash) + std::string(kSeparator) + name.substr(slash + 1));
  std::string commit = revision;
  if (const fs::path ref = model / "refs" / revision; is_there(ref)) {
    commit = read_file(ref.string(), kMaxRefBytes);
    commit.erase(std::ranges::find_if(commit, [](unsigned char c) { return std::isspace(c); }), commit.end());
  }
  const fs::path snapshot = model / "snapshots" / commit;
  return is_revision(commit) && is_folder(snapshot) ? snapshot.string() : path;
}

std::string hub_name_of(const std::string& path) {
  for (const fs::path& part : fs::path(path)) {
    std::string name = part.string();
    const auto between = name.find(kSeparator, kModels.size());
    if (!name.starts_with(kModels) || between == std::string::npos) continue;
    name = name.substr(kModels.size()).replace(between - kModels.size(), kSeparator.size(), "/");
    if (is_hub_name(name)) return name;
  }
  return "";
}

std::string hub_remedy(const std::string& path) {
  const auto [name, revision] = parts_of(path);
  if (!is_hub_name(name) || !is_revision(revision)) return "";
  return fmt::format(
      "; if it is a model of the Hugging Face Hub, it is not in {}: fetch it on a machine with a network, with `hf "
      "download {}{}` (some models also need `hf auth login` and an accepted licence)",
      cache().string(), name, revision == "main" ? "" : " --revision " + revision);
}

}  // namespace lockstep

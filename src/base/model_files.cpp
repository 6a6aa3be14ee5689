#include "base/model_files.h"

#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <vector>

#include "lockstep/error.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

/// Whether the name is one that files of a model, adapters, a tokenizer or a run have. Results that users write beside
/// them have other names.
bool is_part_of_model(const fs::path& file) {
  constexpr std::array kOthers{"config.json", "adapter_config.json", "model.safetensors.index.json",
                               "README.md",   "config.yaml",         "metrics.jsonl"};
  const std::string name = file.filename().string();
  const auto is_name = [&](const char* known) { return name == known; };
  return std::ranges::any_of(kTokenizerFiles, is_name) || std::ranges::any_of(kOthers, is_name) ||
         file.extension() == ".safetensors" || file.parent_path().filename() == "checkpoints";
}

/// The files of the directory of a model or a run.
std::vector<fs::path> files_of(const fs::path& directory) {
  std::vector<fs::path> files;
  for (const fs::path& folder : {directory, directory / "model", directory / "checkpoints"}) {
    std::error_code error;
    for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error))
      if (is_part_of_model(entry->path())) files.push_back(entry->path());
  }
  return files;
}

bool is_same(const struct stat& a, const struct stat& b) { return a.st_dev == b.st_dev && a.st_ino == b.st_ino; }

/// Whether `input` is a folder or is in it.
bool is_in(const fs::path& folder, const fs::path& input) {
  const fs::path inner = fs::canonical(input), outer = fs::canonical(folder);
  return std::ranges::mismatch(outer, inner).in1 == outer.end();
}

}  // namespace

void require_no_input(const std::string& output, std::span<const std::string> inputs) {
  struct stat target {
  }, source{};
  if (::stat(output.c_str(), &target) != 0 || (!S_ISREG(target.st_mode) && !S_ISDIR(target.st_mode))) return;
  const auto check = [&](bool replaced, const std::string& input) {
    require(!replaced, ErrorCode::usage,
            "{} is an input of this command ({}), which the output would replace: give the output another name", output,
            input);
  };
  for (const std::string& input : inputs) {
    if (::stat(input.c_str(), &source) != 0) continue;
    if (S_ISDIR(target.st_mode))  // replaced together with its contents
      check(is_in(output, input), input);
    else if (S_ISDIR(source.st_mode))
      for (const fs::path& file : files_of(input))
        check(::stat(file.c_str(), &source) == 0 && is_same(source, target), file);
    else
      check(is_same(source, target), input);
  }
}

}  // namespace lockstep

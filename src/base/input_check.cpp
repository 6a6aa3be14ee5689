#include "base/input_check.h"

#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <vector>

#include "lockstep/error.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

bool is_same(const fs::path& a, const struct stat& b) {
  struct stat status {};
  return ::stat(a.c_str(), &status) == 0 && status.st_dev == b.st_dev && status.st_ino == b.st_ino;
}

/// Of a model, adapters, a tokenizer or a run. Results that users write beside them have other names.
bool is_part_of_model(const fs::path& file) {
  constexpr std::string_view kNames[] = {"config.json",         "generation_config.json",
                                         "adapter_config.json", "tokenizer.json",
                                         "tokenizer.bin",       "tokenizer_config.json",
                                         "tokenizer.model",     "special_tokens_map.json",
                                         "added_tokens.json",   "chat_template.jinja",
                                         "vocab.json",          "merges.txt",
                                         "config.yaml",         "README.md",
                                         "metrics.jsonl",       "model.safetensors.index.json"};
  return std::ranges::find(kNames, file.filename().string()) != std::end(kNames) ||
         file.extension() == ".safetensors" || file.parent_path().filename() == "checkpoints";
}

/// An input itself; of the directory of a model or a run, the files that belong to it.
std::vector<fs::path> files_of(const fs::path& input) {
  std::vector<fs::path> files{input};
  for (const fs::path& folder : {input, input / "model", input / "checkpoints"}) {
    std::error_code error;
    for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error))
      if (is_part_of_model(entry->path())) files.push_back(entry->path());
  }
  return files;
}

}  // namespace

void require_no_input(const std::string& output, std::span<const std::string> inputs) {
  struct stat target {};
  if (::stat(output.c_str(), &target) != 0 || (!S_ISREG(target.st_mode) && !S_ISDIR(target.st_mode))) return;
  const auto refuse = [&](const fs::path& input) {
    fail(ErrorCode::usage,
         "{} is an input of this command ({}), which the output would replace: give the output another name", output,
         input.string());
  };
  for (const std::string& input : inputs) {
    if (input.empty()) continue;
    std::error_code error;
    if (S_ISDIR(target.st_mode)) {  // replaced with all that is in it
      for (fs::path at = fs::canonical(input, error); !error && !at.empty(); at = at.parent_path()) {
        if (is_same(at, target)) refuse(input);
        if (at == at.root_path()) break;
      }
      continue;
    }
    for (const fs::path& file : files_of(input))
      if (is_same(file, target)) refuse(file);
  }
}

}  // namespace lockstep

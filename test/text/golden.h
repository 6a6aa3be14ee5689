// The tokenizers and vectors of test/golden/tokenizers.
#pragma once

#include <array>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "base/file.h"
#include "lockstep/philox.h"
#include "text/tokenizer.h"

namespace lockstep::text::golden {

using Json = nlohmann::json;
using Ids = std::vector<std::int32_t>;

inline const std::string kFolder = "test/golden/tokenizers/";

inline std::string unzipped(const std::string& name) {
  const std::string command = "gzip -dc " + kFolder + name;
  const std::unique_ptr<FILE, int (*)(FILE*)> pipe(popen(command.c_str(), "r"), pclose);
  std::string content, buffer(1 << 16, '\0');
  for (std::size_t n = 1; n > 0;) {
    n = std::fread(buffer.data(), 1, buffer.size(), pipe.get());
    content.append(buffer, 0, n);
  }
  if (content.empty()) throw std::runtime_error("cannot run " + command);
  return content;
}

/// The tokenizer.json of gpt2, qwen2 or smollm (README.md of the folder says how it is stored).
inline Json byte_level_json(const std::string& name) {
  Json json = Json::parse(read_file(kFolder + name + ".json"));
  Json& model = json["model"];
  std::int32_t next_id = 0;
  Json vocabulary = Json::object(), merges = Json::array();
  for (const auto& token : model["head"]) vocabulary[token.get<std::string>()] = next_id++;
  const std::string lines = unzipped(name + ".merges.gz");
  for (std::size_t begin = 0; begin < lines.size();) {
    const std::size_t end = lines.find('\n', begin);
    std::string merge = lines.substr(begin, end - begin);
    begin = end + 1;
    merges.push_back(merge);
    vocabulary[merge.erase(merge.find(' '), 1)] = next_id++;
  }
  for (const auto& token : model["tail"]) vocabulary[token.get<std::string>()] = next_id++;
  model.erase("head");
  model.erase("tail");
  model["vocab"] = std::move(vocabulary);
  model["merges"] = std::move(merges);
  return json;
}

inline Tokenizer open(const std::string& name) {
  if (name == "tok512") return Tokenizer::open(kFolder + "tok512.bin");
  return Tokenizer::parse(name, name == "llama-story" ? unzipped("llama-story.json.gz") : byte_level_json(name).dump());
}

/// Four random numbers that depend only on the arguments.
inline std::array<std::uint32_t, 4> random(std::uint64_t seed, std::uint64_t index) {
  return philox4x32({static_cast<std::uint32_t>(index), 0, 0, 0}, {static_cast<std::uint32_t>(seed), 0});
}

inline Ids encode(const Tokenizer& tokenizer, std::string_view text, TemplateTokens tokens = TemplateTokens::add) {
  Ids ids;
  tokenizer.encode(text, ids, tokens);
  return ids;
}

}  // namespace lockstep::text::golden

#include "text/tokenizer.h"

#include <algorithm>
#include <filesystem>
#include <unordered_map>
#include <utility>

#include "base/file.h"
#include "base/hash.h"
#include "base/hub_cache.h"
#include "base/pool.h"
#include "base/signals.h"
#include "base/utf8.h"
#include "lockstep/error.h"
#include "text/tokenizer_parts.h"

namespace lockstep::text {
namespace {

/// What one thread needs while it encodes.
struct Memory {
  MatchMemory match;
  MergeMemory merge;
  std::string repaired, normalized[2], prefixed;
};

std::string find_file(const std::string& path) {
  namespace fs = std::filesystem;
  if (!is_folder(path)) return path;
  for (const char* name : {"tokenizer.json", "tokenizer.bin"})
    if (is_there(fs::path(path) / name)) return (fs::path(path) / name).string();
  fail(ErrorCode::cannot_open, "the folder {} contains neither tokenizer.json nor tokenizer.bin", path);
}

NamedContent read(const std::string& path) {
  const std::string remedy = is_there(path) ? "" : hub_remedy(path);
  require(
      is_there(path), ErrorCode::cannot_open, "there is no tokenizer {}{}", path,
      remedy.empty() ? ": expected a tokenizer.json, a tokenizer.bin of llama2.c, or a folder that has one" : remedy);
  return {path, read_file(path, kMaxTokenizerBytes)};
}

/// Distinguishes the formats: a tokenizer.bin begins with a small four-byte number, while JSON contains no zero byte.
TokenizerParts read_parts(const NamedContent& file, const std::optional<NamedContent>& config = {}) {
  const bool is_binary = file.content.substr(0, sizeof(std::int32_t)).find('\0') != std::string::npos;
  return is_binary ? read_llama2c_tokenizer(file) : read_tokenizer_json(file, config);
}

/// The ids of added tokens, and whether they are special.
std::unordered_map<std::int32_t, bool> ids_of(const TokenizerParts& parts) {
  std::unordered_map<std::int32_t, bool> ids;
  for (const auto* tokens : {&parts.added_tokens, &parts.normalized_added_tokens})
    for (const AddedToken& token : *tokens) ids.emplace(token.id, token.is_special);
  return ids;
}

/// No value if the tokenizer lacks one of the ids.
std::optional<std::string> try_decode(const Tokenizer& tokenizer, std::span<const std::int32_t> ids) {
  try {
    return tokenizer.decode(ids);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::data_source) throw;
  }
  return std::nullopt;
}

}  // namespace

struct Tokenizer::State {
  State(NamedContent read_file, TokenizerParts read)
      : file(std::move(read_file)),
        parts(std::move(read)),
        added_ids(ids_of(parts)),
        added(std::move(parts.added_tokens)),
        normalized_added(std::move(parts.normalized_added_tokens)),
        model(std::move(parts.model)),
        hash(hash_text(hash_bytes(std::as_bytes(std::span(parts.canonical))))) {
    parts.canonical = {};
  }

  NamedContent file;
  TokenizerParts parts;  // without what the following members are made of
  std::unordered_map<std::int32_t, bool> added_ids;
  AddedTokens added, normalized_added;
  BytePairEncoding model;
  std::string hash;
  Pool<Memory> memory;
};

Tokenizer::Tokenizer(std::unique_ptr<State> state) : state_(std::move(state)) {}
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer::~Tokenizer() = default;

Tokenizer Tokenizer::open(const std::string& path) {
  NamedContent file = read(find_file(find_model(path)));
  const std::string config = (std::filesystem::path(file.name).parent_path() / "tokenizer_config.json").string();
  TokenizerParts parts = is_there(config) ? read_parts(file, read(config)) : read_parts(file);
  return Tokenizer(std::make_unique<State>(std::move(file), std::move(parts)));
}

Tokenizer Tokenizer::parse(std::string name, std::string content) {
  NamedContent file{std::move(name), std::move(content)};
  TokenizerParts parts = read_parts(file);
  return Tokenizer(std::make_unique<State>(std::move(file), std::move(parts)));
}

const std::string& Tokenizer::path() const { return state_->file.name; }
const std::string& Tokenizer::content() const { return state_->file.content; }
std::int32_t Tokenizer::vocabulary_size() const { return static_cast<std::int32_t>(state_->parts.tokens.size()); }
const std::string& Tokenizer::hash() const { return state_->hash; }
std::optional<std::int32_t> Tokenizer::begin_token() const { return state_->parts.begin_token; }
std::optional<std::int32_t> Tokenizer::end_token() const { return state_->parts.end_token; }
bool Tokenizer::is_added(std::int32_t id) const { return state_->added_ids.contains(id); }
bool Tokenizer::is_special(std::int32_t id) const { return is_added(id) && state_->added_ids.at(id); }

void Tokenizer::encode(std::string_view text, std::vector<std::int32_t>& ids, TemplateTokens template_tokens) const {
  State& state = *state_;
  auto memory = state.memory.lend();
  const auto put = [&](std::int32_t id) { ids.push_back(id); };
  const auto put_word = [&](std::string_view word) {
    throw_if_stopped();  // a text may have 1 GiB
    state.model.encode(word, ids, memory->merge);
  };
  const auto put_normalized = [&](std::string_view part) {
    state.parts.pre_tokenizer.split(part, memory->match, memory->prefixed, put_word);
  };
  const auto put_part = [&](std::string_view part) {
    state.normalized_added.split(state.parts.normalizer.apply(part, memory->normalized), memory->match, put,
                                 put_normalized);
  };

  const bool adds_template = template_tokens == TemplateTokens::add;
  if (adds_template) ids.insert(ids.end(), state.parts.prefix.begin(), state.parts.prefix.end());
  state.added.split(valid_utf8(text, memory->repaired), memory->match, put, put_part);
  if (adds_template) ids.insert(ids.end(), state.parts.suffix.begin(), state.parts.suffix.end());
}

std::string Tokenizer::decode(std::span<const std::int32_t> ids) const {
  std::vector<std::string> tokens;
  tokens.reserve(ids.size());
  for (const std::int32_t id : ids) {
    require(id >= 0 && id < vocabulary_size(), ErrorCode::data_source,
            "the id {} is outside of the vocabulary, which has the ids 0 to {}", id, vocabulary_size() - 1);
    const std::optional<std::string>& token = state_->parts.tokens[static_cast<std::size_t>(id)];
    require(token.has_value(), ErrorCode::data_source, "no token of the vocabulary has the id {}", id);
    tokens.push_back(*token);
  }
  return state_->parts.decoder.decode(std::move(tokens));
}

std::span<const std::int32_t> Tokenizer::without_template(std::span<const std::int32_t> ids) const {
  const std::span<const std::int32_t> prefix = state_->parts.prefix, suffix = state_->parts.suffix;
  if (ids.size() < prefix.size() + suffix.size()) return ids;
  if (!std::ranges::equal(ids.first(prefix.size()), prefix)) return ids;
  if (!std::ranges::equal(ids.last(suffix.size()), suffix)) return ids;
  return ids.subspan(prefix.size(), ids.size() - prefix.size() - suffix.size());
}

std::string decode_known(const Tokenizer& tokenizer, std::span<const std::int32_t> ids, SpecialTokens special) {
  std::vector<std::int32_t> known(ids.begin(), ids.end());
  if (special == SpecialTokens::skip) std::erase_if(known, [&](std::int32_t id) { return tokenizer.is_special(id); });
  if (auto text = try_decode(tokenizer, known)) return std::move(*text);
  std::erase_if(known, [&](const std::int32_t& id) { return !try_decode(tokenizer, std::span(&id, 1)); });
  return tokenizer.decode(known);
}

}  // namespace lockstep::text

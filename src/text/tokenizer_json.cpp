// The format: huggingface/tokenizers, `Tokenizer` (tokenizers/src/tokenizer/serialization.rs) and the parts that it
// names. Where this reader is stricter than that library, the library would give other ids than the file says.
#include <nlohmann/json.hpp>
#include <unordered_set>

#include "base/json.h"
#include "lockstep/error.h"
#include "text/tokenizer_parts.h"

namespace lockstep::text {
namespace {

using Json = nlohmann::json;

constexpr int kMaxDepth = 8;                     // of nested sequences
constexpr std::size_t kMaxAddedBytes = 1 << 20;  // contents of all added tokens, since the search for them needs memory
constexpr const char* kByteLevelPattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

/// A part of the file: its value, and its place for messages.
struct Node {
  const Json& json;
  std::string where;

  [[noreturn]] void damaged(std::string_view expected) const {
    fail(ErrorCode::model_file_damaged, "{}: expected {}, found {}", where, expected, excerpt());
  }
  [[noreturn]] void unsupported(std::string_view feature) const {
    fail(ErrorCode::model_feature, "{}: {} is not supported", where, feature);
  }
  std::string excerpt() const {
    if (json.is_structured()) return fmt::format("an {} with {} elements", json.type_name(), json.size());
    return json.dump(-1, ' ', true).substr(0, 80);
  }

  bool has(const char* key) const { return json.is_object() && json.contains(key) && !json[key].is_null(); }
  Node at(const char* key) const {
    if (!json.is_object()) damaged("an object");
    if (!json.contains(key)) fail(ErrorCode::model_file_damaged, "{} has no `{}`", where, key);
    return {json[key], where + "." + key};
  }
  Node at(std::size_t i) const { return {json[i], fmt::format("{}[{}]", where, i)}; }
  const std::string& string() const {
    if (!json.is_string()) damaged("a string");
    return json.get_ref<const std::string&>();
  }
  bool boolean() const {
    if (!json.is_boolean()) damaged("true or false");
    return json.get<bool>();
  }
  std::uint64_t whole(std::uint64_t max) const {
    if (!json.is_number_unsigned() || json.get<std::uint64_t>() > max) damaged(fmt::format("an integer up to {}", max));
    return json.get<std::uint64_t>();
  }
  std::int32_t id() const { return static_cast<std::int32_t>(whole(kMaxVocabulary - 1)); }
  bool flag(const char* key, bool fallback) const { return has(key) ? at(key).boolean() : fallback; }
  std::string type() const { return at("type").string(); }
  Node array(const char* key) const {
    Node list = at(key);
    if (!list.json.is_array()) list.damaged("an array");
    return list;
  }
  /// Calls `visit` for this node, or for all parts of a Sequence and of the sequences in it.
  template <typename Visit>
  void each(const char* parts, Visit visit, int depth = 0) const {
    if (type() != "Sequence") return visit(*this);
    if (depth == kMaxDepth) unsupported(fmt::format("a Sequence in {} others", kMaxDepth));
    const Node list = array(parts);
    for (std::size_t i = 0; i < list.json.size(); ++i) list.at(i).each(parts, visit, depth + 1);
  }
  /// The text of a pattern {"String": "..."}.
  std::string fixed_pattern() const {
    const Node pattern = at("pattern");
    if (!pattern.has("String")) pattern.unsupported("a pattern other than {\"String\": ...} in " + type());
    const std::string& text = pattern.at("String").string();
    if (text.empty()) pattern.unsupported("an empty pattern");
    return text;
  }
};

Json parse(const NamedContent& file) { return parse_json(file.content, file.name, ErrorCode::model_file_damaged); }

// ---- Normaliser, pre-tokenizer, decoder, post-processor -------------------------------------------------------------

std::vector<NormalizerStep> read_normalizer(const Node& root) {
  using Kind = NormalizerStep::Kind;
  std::vector<NormalizerStep> steps;
  if (!root.has("normalizer")) return steps;
  root.at("normalizer").each("normalizers", [&](const Node& node) {
    const std::string type = node.type();
    if (type == "NFC")
      steps.push_back({Kind::nfc, "", ""});
    else if (type == "Prepend")
      steps.push_back({Kind::prepend, "", node.at("prepend").string()});
    else if (type == "Replace")
      steps.push_back({Kind::replace, node.fixed_pattern(), node.at("content").string()});
    else
      node.unsupported("the normalizer " + type);
  });
  return steps;
}

Pattern read_pattern(const Node& node) {
  const Node pattern = node.at("pattern");
  if (pattern.has("String")) return Pattern::literal(node.fixed_pattern(), node.where);
  if (!pattern.has("Regex")) pattern.unsupported("a pattern other than {\"String\": ...} and {\"Regex\": ...}");
  return {pattern.at("Regex").string(), node.where};
}

SplitBehavior read_behavior(const Node& node) {
  const std::string& name = node.string();
  if (name == "Isolated") return SplitBehavior::isolated;
  if (name == "Removed") return SplitBehavior::removed;
  if (name == "MergedWithPrevious") return SplitBehavior::merged_with_previous;
  node.unsupported("the behavior " + name + " of a Split");
}

PreTokenizer read_pre_tokenizer(const Node& root, SymbolKind& symbols) {
  symbols = SymbolKind::code_points;
  std::vector<SplitStep> steps;
  std::ptrdiff_t prefixed_from = -1;
  if (!root.has("pre_tokenizer")) return PreTokenizer();
  root.at("pre_tokenizer").each("pretokenizers", [&](const Node& node) {
    if (symbols == SymbolKind::bytes) node.unsupported("a pre-tokenizer after ByteLevel");
    const std::string type = node.type();
    if (type == "Split") {
      steps.push_back({read_pattern(node), read_behavior(node.at("behavior")), node.at("invert").boolean()});
    } else if (type == "Digits") {
      steps.push_back({Pattern(node.at("individual_digits").boolean() ? R"(\p{N})" : R"(\p{N}+)", node.where)});
    } else if (type == "ByteLevel") {
      symbols = SymbolKind::bytes;
      if (node.at("add_prefix_space").boolean()) prefixed_from = static_cast<std::ptrdiff_t>(steps.size());
      if (node.flag("use_regex", true)) steps.push_back({Pattern(kByteLevelPattern, node.where)});
    } else {
      node.unsupported("the pre-tokenizer " + type);
    }
  });
  return PreTokenizer(std::move(steps), prefixed_from);
}

Decoder read_decoder(const Node& root) {
  using Kind = DecoderStep::Kind;
  std::vector<DecoderStep> steps;
  if (!root.has("decoder")) return {{}, " "};
  root.at("decoder").each("decoders", [&](const Node& node) {
    const std::string type = node.type();
    if (type == "ByteLevel") {
      steps.push_back({Kind::byte_level, "", "", 0, 0});
    } else if (type == "Replace") {
      steps.push_back({Kind::replace, node.fixed_pattern(), node.at("content").string(), 0, 0});
    } else if (type == "ByteFallback") {
      steps.push_back({Kind::byte_fallback, "", "", 0, 0});
    } else if (type == "Fuse") {
      steps.push_back({Kind::fuse, "", "", 0, 0});
    } else if (type == "Strip") {
      const std::string& content = node.at("content").string();
      if (content.empty()) node.at("content").damaged("one character");
      steps.push_back({Kind::strip, "", content, node.at("start").whole(kMaxTokenizerBytes),
                       node.at("stop").whole(kMaxTokenizerBytes)});
    } else {
      node.unsupported("the decoder " + type);
    }
  });
  return {std::move(steps), ""};
}

void read_template(const Node& node, TokenizerParts& parts) {
  const auto check_id = [&](const Node& id) {
    const auto index = static_cast<std::size_t>(id.id());
    if (index >= parts.tokens.size() || !parts.tokens[index]) id.damaged("the id of a token");
    return static_cast<std::int32_t>(index);
  };
  const Node single = node.array("single");
  bool is_before = true;
  for (std::size_t i = 0; i < single.json.size(); ++i) {
    const Node piece = single.at(i);
    if (piece.has("Sequence")) {
      const Node sequence = piece.at("Sequence");
      if (!is_before || sequence.at("id").string() != "A") sequence.unsupported("a template other than with one A");
      is_before = false;
      continue;
    }
    const std::string& name = piece.at("SpecialToken").at("id").string();
    const Node special = node.at("special_tokens").at(name.c_str()).array("ids");
    for (std::size_t k = 0; k < special.json.size(); ++k)
      (is_before ? parts.prefix : parts.suffix).push_back(check_id(special.at(k)));
  }
  if (is_before) single.unsupported("a template without A");
}

void read_post_processor(const Node& root, TokenizerParts& parts) {
  if (!root.has("post_processor")) return;
  bool has_template = false;
  root.at("post_processor").each("processors", [&](const Node& node) {
    const std::string type = node.type();
    if (type == "TemplateProcessing") {
      if (has_template) node.unsupported("a second TemplateProcessing");
      has_template = true;
      read_template(node, parts);
    } else if (type != "ByteLevel") {  // ByteLevel only changes offsets
      node.unsupported("the post-processor " + type);
    }
  });
}

// ---- The model ------------------------------------------------------------------------------------------------------

/// The texts of the vocabulary by id.
void read_vocabulary(const Node& vocabulary, TokenizerParts& parts) {
  if (!vocabulary.json.is_object() || vocabulary.json.empty()) vocabulary.damaged("an object with tokens");
  // There may be gaps between ids, but a large id among few tokens is an error, and would need a lot of memory.
  const std::size_t max_ids = std::min<std::size_t>(2 * vocabulary.json.size() + 1024, kMaxVocabulary);
  for (const auto& [token, number] : vocabulary.json.items()) {
    const bool is_id = number.is_number_unsigned() && number.get<std::uint64_t>() < max_ids;
    if (!is_id) Node{number, vocabulary.where + "." + token}.whole(max_ids - 1);
    const auto id = number.get<std::size_t>();
    if (id >= parts.tokens.size()) parts.tokens.resize(id + 1);
    require(!parts.tokens[id], ErrorCode::model_file_damaged, "{}: the tokens {} and {} have the same id {}",
            vocabulary.where, parts.tokens[id].value_or(""), token, id);
    parts.tokens[id] = token;
  }
}

/// The two tokens of "a b" or ["a", "b"]; no value if it is neither.
std::optional<std::pair<std::string_view, std::string_view>> read_pair(const Json& merge) {
  if (merge.is_array()) {
    if (merge.size() != 2 || !merge[0].is_string() || !merge[1].is_string()) return std::nullopt;
    return std::pair<std::string_view, std::string_view>(merge[0].get_ref<const std::string&>(),
                                                         merge[1].get_ref<const std::string&>());
  }
  if (!merge.is_string()) return std::nullopt;
  const std::string_view line = merge.get_ref<const std::string&>();
  const std::size_t blank = line.find(' ');
  if (blank == std::string_view::npos || line.find(' ', blank + 1) != std::string_view::npos) return std::nullopt;
  return std::pair(line.substr(0, blank), line.substr(blank + 1));
}

void read_merges(const Node& list, const IdsByText& ids, std::vector<Merge>& merges) {
  if (list.json.size() > kMaxVocabulary) list.unsupported(fmt::format("more than {} merges", kMaxVocabulary));
  merges.reserve(list.json.size());
  std::string joined;
  for (std::size_t i = 0; i < list.json.size(); ++i) {
    const Json& merge = list.json[i];
    if (merge.is_string() && merge.get_ref<const std::string&>().starts_with("#version")) continue;
    const auto pair = read_pair(merge);
    if (!pair) list.at(i).damaged("two tokens, as \"a b\" or [\"a\", \"b\"]");
    const auto id_of = [&](std::string_view token) {
      const auto found = ids.find(token);
      if (found == ids.end())
        fail(ErrorCode::model_file_damaged, "{}: the token {} is not in the vocabulary", list.at(i).where, token);
      return found->second;
    };
    joined.assign(pair->first).append(pair->second);
    const auto rank = static_cast<std::uint32_t>(merges.size());
    merges.push_back({id_of(pair->first), id_of(pair->second), id_of(joined), rank});
  }
}

void refuse_unless_empty(const Node& model, const char* key) {
  if (model.has(key) && !model.at(key).string().empty()) model.unsupported(key);
}

void read_model(const Node& model, TokenizerParts& parts, SymbolKind symbols, const IdsByText& ids) {
  BytePairModel& out = parts.model;
  out.symbols = symbols;
  if (model.has("dropout") && model.json["dropout"] != 0.0) model.unsupported("dropout");
  refuse_unless_empty(model, "continuing_subword_prefix");
  refuse_unless_empty(model, "end_of_word_suffix");
  out.fuse_unknown = model.flag("fuse_unk", false);
  out.whole_words_first = model.flag("ignore_merges", false);
  if (model.has("unk_token") && !model.at("unk_token").string().empty()) {
    const auto found = ids.find(model.at("unk_token").string());
    if (found == ids.end()) model.at("unk_token").damaged("a token of the vocabulary");
    out.unknown = found->second;
  }
  if (model.flag("byte_fallback", false)) {
    if (symbols == SymbolKind::bytes) model.unsupported("byte_fallback with the pre-tokenizer ByteLevel");
    out.byte_fallback.emplace();
    for (unsigned byte = 0; byte < 256; ++byte) {
      const auto found = ids.find(fmt::format("<0x{:02X}>", byte));
      (*out.byte_fallback)[byte] = found == ids.end() ? -1 : found->second;
    }
  }
  read_merges(model.array("merges"), ids, out.merges);
}

// ---- Added tokens ---------------------------------------------------------------------------------------------------

/// Reads the added tokens, and adds their ids to `ids`.
void read_added_tokens(const Node& root, const std::vector<NormalizerStep>& steps, TokenizerParts& parts,
                       IdsByText& ids) {
  if (!root.has("added_tokens")) return;
  const Node list = root.array("added_tokens");
  const Normalizer normalizer(steps);
  std::unordered_set<std::int32_t> seen;
  std::size_t n_bytes = 0;
  // Ids count on from the number of tokens of the model.
  auto next_id = static_cast<std::int32_t>(ids.size());
  for (std::size_t i = 0; i < list.json.size(); ++i) {
    const Node node = list.at(i);
    const std::string& content = node.at("content").string();
    if (content.empty()) node.at("content").damaged("a token of at least one byte");
    n_bytes += content.size();
    if (n_bytes > kMaxAddedBytes) list.unsupported(fmt::format("more than {} bytes in added tokens", kMaxAddedBytes));
    AddedToken token{node.at("id").id(),
                     content,
                     node.flag("single_word", false),
                     node.flag("lstrip", false),
                     node.flag("rstrip", false),
                     node.flag("special", false)};
    const auto known = ids.find(content);
    const std::int32_t id = known != ids.end() ? known->second : next_id;
    if (token.id != id)
      node.unsupported(fmt::format("the id {} of the token {}, which must be {},", token.id, content, id));
    const auto index = static_cast<std::size_t>(id);
    if (known == ids.end()) {
      if (index < parts.tokens.size() && parts.tokens[index])
        node.unsupported(fmt::format("the id {}, which the token {} has already,", id, *parts.tokens[index]));
      ++next_id;
      ids.emplace(content, id);
      if (index >= parts.tokens.size()) parts.tokens.resize(index + 1);
    }
    if (!seen.insert(id).second)
      fail(ErrorCode::model_file_damaged, "{}: the token {} occurs twice", node.where, content);
    const bool is_normalized = node.flag("normalized", true);
    std::string buffers[2];
    if (is_normalized) token.content = normalizer.apply(content, buffers);
    parts.tokens[index] = token.content;
    (is_normalized ? parts.normalized_added_tokens : parts.added_tokens).push_back(std::move(token));
  }
}

/// Finds the ids of eos_token and bos_token in tokenizer_config.json, or else the usual end token and the token with
/// which the template begins.
void find_begin_and_end(const std::optional<NamedContent>& file, const IdsByText& ids, TokenizerParts& parts) {
  if (file) {
    const Json json = parse(*file);
    const Node config{json, file->name};
    if (!json.is_object()) config.damaged("an object");
    const auto named = [&](const char* key) -> std::optional<std::int32_t> {
      if (!config.has(key)) return std::nullopt;
      const Node node = config.at(key);
      const std::string& content = node.json.is_object() ? node.at("content").string() : node.string();
      const auto found = ids.find(content);
      if (found == ids.end()) node.damaged("a token of the vocabulary");
      return found->second;
    };
    parts.begin_token = named("bos_token");
    parts.end_token = named("eos_token");
  }
  if (!parts.begin_token && !parts.prefix.empty()) parts.begin_token = parts.prefix.front();
  for (const char* usual : {"<|endoftext|>", "<|end_of_text|>", "</s>"})
    if (const auto found = ids.find(usual); !parts.end_token && found != ids.end()) parts.end_token = found->second;
}

// ---- The whole file -------------------------------------------------------------------------------------------------

/// Everything that the ids depend on, independent of the formatting of the file.
std::string canonical_text(const Node& root, const TokenizerParts& parts) {
  std::string out;
  for (std::size_t id = 0; id < parts.tokens.size(); ++id)
    if (parts.tokens[id]) out += fmt::format("{} {} {}\n", id, parts.tokens[id]->size(), *parts.tokens[id]);
  for (const Merge& merge : parts.model.merges) out += fmt::format("{} {}\n", merge.left, merge.right);
  for (const auto* list : {&parts.added_tokens, &parts.normalized_added_tokens})
    for (const AddedToken& token : *list)
      out += fmt::format("{} {} {} {} {}\n", list == &parts.added_tokens ? "raw" : "normalized", token.id,
                         token.single_word, token.strip_left, token.strip_right);
  for (const char* key : {"normalizer", "pre_tokenizer"})
    if (root.has(key)) {
      out += root.json[key].dump() + '\n';
    }
  const BytePairModel& model = parts.model;
  out += fmt::format("{} {} {} {}\n{}\n{}\n", model.unknown.value_or(-1), model.fuse_unknown,
                     model.byte_fallback.has_value(), model.whole_words_first, fmt::join(parts.prefix, " "),
                     fmt::join(parts.suffix, " "));
  return out;
}

}  // namespace

TokenizerParts read_tokenizer_json(const NamedContent& file, const std::optional<NamedContent>& config) {
  const Json json = parse(file);
  const Node root{json, file.name};
  if (root.has("version") && root.at("version").string() != "1.0")
    root.unsupported("the version " + root.at("version").string());
  for (const char* key : {"truncation", "padding"})
    if (root.has(key)) root.unsupported(std::string(key) + " (set it to null in the file)");
  const Node model = root.at("model");
  if (model.has("type") && model.type() != "BPE") model.unsupported("the model " + model.type());

  TokenizerParts parts;
  SymbolKind symbols{};
  read_vocabulary(model.at("vocab"), parts);
  IdsByText ids;
  for (std::size_t id = 0; id < parts.tokens.size(); ++id)
    if (parts.tokens[id]) ids.emplace(*parts.tokens[id], static_cast<std::int32_t>(id));
  const std::vector<NormalizerStep> normalizer = read_normalizer(root);
  parts.normalizer = Normalizer(normalizer);
  parts.pre_tokenizer = read_pre_tokenizer(root, symbols);
  parts.decoder = read_decoder(root);
  read_model(model, parts, symbols, ids);
  for (const auto& [token, id] : ids) {
    std::string bytes;
    if (symbols == SymbolKind::code_points)
      parts.model.ids.emplace(token, id);
    else if (append_bytes_of_printable(token, bytes))
      parts.model.ids.emplace(std::move(bytes), id);
  }
  read_added_tokens(root, normalizer, parts, ids);
  read_post_processor(root, parts);
  find_begin_and_end(config, ids, parts);
  parts.canonical = canonical_text(root, parts);
  return parts;
}

}  // namespace lockstep::text

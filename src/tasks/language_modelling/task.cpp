#include "tasks/task.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "base/file.h"
#include "base/printable.h"
#include "data/dataset.h"
#include "data/image_set.h"
#include "data/text_file.h"
#include "data/text_range.h"
#include "data/text_set.h"
#include "generate/decoder.h"
#include "graph/parameter_arena.h"
#include "layers/layers.h"
#include "lockstep/error.h"
#include "lockstep/log.h"
#include "models/llama.h"
#include "tasks/language_modelling/answers.h"
#include "tasks/language_modelling/model_source.h"
#include "tasks/language_modelling/text_sampler.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace lockstep::tasks {
namespace {

using models::LlamaConfig;

/// The mean loss is a mean over tokens, so this is the usual perplexity per token.
const Measure& perplexity_measure() {
  static const Measure perplexity{.key = "perplexity",
                                  .unit = "",
                                  .scale = 1,
                                  .step_digits = 2,
                                  .epoch_digits = 2,
                                  .result_digits = 3,
                                  .greater_is_better = false,
                                  .of = [](const LossSums& sums) { return std::exp(mean(sums.loss, sums.weight)); }};
  return perplexity;
}

/// Those of a step, and then those of answers (answers.h).
std::span<const Measure> all_measures() {
  static const Measure measures[] = {loss_measure(),
                                     perplexity_measure(),
                                     {.key = kRougeL.key, .unit = "", .greater_is_better = true},
                                     {.key = kExactMatch.key, .unit = "", .greater_is_better = true}};
  return measures;
}

/// A language model has no results besides its measures.
class NoTally final : public Tally {
 public:
  void add(const data::Batch&, std::span<const float>) override {}
  std::string counts() const override { return {}; }
  void add_counts(std::string_view) override {}
  nlohmann::ordered_json json() const override { return nlohmann::ordered_json::object(); }
  std::string summary() const override { return {}; }
  std::string text() const override { return {}; }
  std::string picture(const std::string&) const override { return {}; }
};

models::Recompute recompute_of(const Config::Model& model) {
  if (model.recompute == "block") return models::Recompute::block;
  return model.recompute == "selective" ? models::Recompute::selective : models::Recompute::none;
}

enum class Split : std::uint8_t { train, validation };

class LanguageModelling final : public Task {
 public:
  explicit LanguageModelling(const Config& config) : config_(config), model_(model_source(config.model)) {
    std::int64_t& length = config_.data.sequence_length;
    if (!config_.origins.contains("data.sequence_length")) length = std::min(length, model_.positions);
    require(length <= model_.positions, ErrorCode::config_conflict,
            "data.sequence_length is {}, but the model has {} positions (max_position_embeddings): set "
            "data.sequence_length={}",
            length, model_.positions, model_.positions);
    require(config_.model.base_precision == Config::Model{}.base_precision || config_.model.lora.is_on(),
            ErrorCode::config_conflict,
            "{}model.base_precision={} stores matrices that are not trained: set model.lora.rank to train adapters "
            "beside them",
            config_.places({"model.base_precision"}), config_.model.base_precision);
    const Config::Model::Lora &lora = config_.model.lora, defaults;
    require(lora.is_on() || (lora.alpha == defaults.alpha && lora.dropout == defaults.dropout &&
                             lora.rslora == defaults.rslora && lora.targets == defaults.targets),
            ErrorCode::config_conflict,
            "{}model.lora describes adapters, but its rank is 0, which trains the whole model: set model.lora.rank",
            config_.places({"model.lora.alpha", "model.lora.dropout", "model.lora.targets", "model.lora.rslora"}));
  }

  LanguageModelling(const Config& config, std::shared_ptr<const data::TextSet> train,
                    std::shared_ptr<const data::TextSet> validation)
      : LanguageModelling(config) {
    train_set_ = std::move(train);
    validation_set_ = std::move(validation);
    check_set(train_set_.get());
    check_set(validation_set_.get());
  }

  void complete(Config& config) const override { config.data.sequence_length = config_.data.sequence_length; }

  void open_train_set() override {
    train_set_ = open(Split::train);
    warn_without_tokenizer();
    if (train_set_->info().n_answer_tokens > 0) {
      report_conversations(train_set_->info());
      find_answer_end(train_set_->info());
    }
    if (!config_.evaluation.generate.empty()) prepare_samples();
  }
  void open_validation_set() override {
    if (!config_.data.validation.empty()) validation_set_ = open(Split::validation);
    if (!train_set_ || !validation_set_) return;
    if (config_.evaluation.answers > 0) prepare_questions();
    const data::TextSetInfo &train = train_set_->info(), &validation = validation_set_->info();
    require(train.tokenizer_hash == validation.tokenizer_hash, ErrorCode::model_mismatch,
            "{} and {} were made with different tokenizers: import one of them again with --tokenizer", train.path,
            validation.path);
  }
  std::shared_ptr<const data::Dataset> train_set() const override {
    return train_set_ && has_dropout() ? data::numbered(train_set_) : train_set_;
  }
  std::shared_ptr<const data::Dataset> validation_set() const override { return validation_set_; }
  std::vector<data::Field> evaluation_fields() const override {
    return validation_set_ ? validation_set_->fields() : train_set_->fields();
  }
  std::string describe_samples() const override {
    const data::TextSetInfo& set = train_set_->info();
    const bool has_answers = set.n_answer_tokens > 0;
    return fmt::format("windows of {} tokens, {} {}{}, {} tokens{}", config_.data.sequence_length, set.n_documents,
                       has_answers ? "conversation" : "document", set.n_documents == 1 ? "" : "s", set.n_tokens,
                       has_answers ? fmt::format(", {} of them in answers", set.n_answer_tokens) : "");
  }

  /// tokens -> decoder -> last product and cross entropy with targets. The logits do not exist as a whole, so the
  /// outputs are the losses of the tokens.
  graph::ActivationId wire(graph::Graph& graph, const Wiring& wiring) const override {
    // Attention is faster without boundaries.
    const bool has_boundaries = config_.data.pack && !config_.data.cross_documents;
    const graph::TensorId start = has_boundaries ? wiring.fields.at(data::kDocumentStartField) : graph::kNoTensor;
    const graph::ActivationId hidden = models::llama(
        graph, model_,
        {.sequence_length = config_.data.sequence_length,
         .tokens = wiring.fields.at(data::kTokensField),
         .positions = wiring.fields.at(data::kPositionsField),
         .document_start = start,
         .n_positions = n_positions(),
         .sample_ids = graph.training() && has_dropout() ? wiring.fields.at(data::kSampleIdField) : graph::kNoTensor},
        model_options());
    const graph::ActivationId losses = graph.training() ? graph::kNoActivation : token_losses(graph);
    layers::linear_cross_entropy(
        graph, hidden, "lm_head", wiring.fields.at(data::kTargetsField), wiring.sums_offset,
        {.vocabulary = model_.vocabulary,
         .weight = models::llama_head(model_) + ".weight",
         .initial = models::llama_initializer(model_),
         .losses = losses == graph::kNoActivation ? graph::kNoTensor : graph.activation(losses).data});
    return losses;
  }
  double nominal_count(std::int64_t n_samples) const override {
    return static_cast<double>(n_samples * (config_.data.sequence_length - 1));
  }
  double processed_count(std::int64_t n_samples) const override {
    return static_cast<double>(n_samples * config_.data.sequence_length);
  }
  float statistics_momentum() const override { return 0; }  // there are no running statistics

  std::span<const Measure> measures() const override { return all_measures().first(2); }
  std::span<const Measure> evaluation_measures() const override {
    return config_.evaluation.answers > 0 ? all_measures() : measures();
  }
  const CountUnit& count_unit() const override {
    static const CountUnit unit{
        .name = "tokens", .rate_key = "tokens_per_second", .rate_unit = "tokens/s", .counts_part = true};
    return unit;
  }
  const Measure& quality_measure() const override { return loss_measure(); }
  std::unique_ptr<Tally> make_tally() const override { return std::make_unique<NoTally>(); }

  std::unique_ptr<TextSampler> make_text_sampler(Precision precision, Backend& backend,
                                                 graph::ParameterTable& table) const override {
    if (sample_prompts_.texts.empty() && !questions_) return nullptr;
    return std::make_unique<TextSampler>(
        TextSampler::Model{.config = model_,
                           .options = model_options(),
                           .positions = n_positions(),
                           .dtype = storage_type(precision),
                           .tf32 = precision == Precision::tf32},
        sample_prompts_,
        [tokenizer = tokenizer_](std::span<const std::int32_t> ids) { return text::decode_known(*tokenizer, ids); },
        questions_, backend, table);
  }
  std::vector<LaunchList::Entry> list_decoding(Precision precision, Backend& backend) const override {
    graph::ParameterTable table;
    table.set_base([](const std::string&) { return true; });  // no gradients
    generate::Decoder decoder(model_,
                              {.slots = 1, .capacity = std::min(model_.positions, config_.data.sequence_length)},
                              storage_type(precision), precision == Precision::tf32, backend, table, model_options());
    table.fix_order({});
    const graph::ParameterArena parameters(table, storage_type(precision), backend);
    const LaunchList of_preparation;
    decoder.allocate(parameters.bindings());
    const LaunchList list;
    decoder.run_step();
    return list.entries();
  }

  ModelName model_name() const override {
    const double millions = static_cast<double>(model_.n_parameters()) / 1e6;
    const std::string size = fmt::format("{:.{}f}m", millions, millions < 10 ? 1 : 0);
    const std::string name = fmt::format("{}-{}", model_.type(), size);
    return {.file_name = name,
            .title = name,
            .details = fmt::format("{} layers, width {}, {} heads, {} key-value heads, vocabulary {}", model_.layers,
                                   model_.width, model_.heads, model_.key_value_heads, model_.vocabulary)};
  }
  nlohmann::ordered_json model_stamp() const override {
    nlohmann::ordered_json stamp{{"family", config_.model.family}, {"config", models::to_json(model_).dump()}};
    const Config::Model::Lora& lora = config_.model.lora;
    if (lora.is_on())
      stamp.update({{"lora.rank", lora.rank},
                    {"lora.alpha", lora.alpha},
                    {"lora.targets", lora.targets},
                    {"lora.rslora", lora.rslora}});
    if (lora.is_on() && !config_.model.ignore_keys.empty()) stamp["ignore_keys"] = config_.model.ignore_keys;
    if (config_.model.base_precision != Config::Model{}.base_precision)
      stamp["base_precision"] = config_.model.base_precision;
    return stamp;
  }
  nlohmann::ordered_json inference_stamp() const override {
    nlohmann::ordered_json stamp{{"tokenizer_hash", train_set_ ? train_set_->info().tokenizer_hash : adopted_hash_}};
    if (answer_end_) stamp[kAnswerEndKey] = *answer_end_;
    return stamp;
  }
  std::vector<std::string> adopt(const nlohmann::json& inference, const std::string& source) override {
    adopted_source_ = source;
    const auto found = inference.is_object() ? inference.find("tokenizer_hash") : inference.end();
    if (found == inference.end()) {  // a directory, or a checkpoint that was imported
      adopted_hash_ = tokenizer_hash(source);
      if (!adopted_hash_.empty()) return {};
      return {fmt::format("{} does not record the tokenizer of its model, which must be that of the data", source)};
    }
    require(found->is_string(), ErrorCode::checkpoint_damaged, "{}: inference.tokenizer_hash: expected text, found {}",
            source, found->dump());
    adopted_hash_ = found->get<std::string>();
    return {};
  }
  std::map<std::string, std::string> model_files() const override {
    return {{"config.json", models::to_json(model_).dump(2) + "\n"}};
  }
  bool is_head(const std::string& parameter) const override { return parameter == "lm_head.weight"; }

 private:
  bool has_dropout() const { return config_.model.lora.is_on() && config_.model.lora.dropout > 0; }
  models::LlamaOptions model_options() const {
    models::LlamaOptions options = tasks::model_options(config_.model);
    options.recompute = recompute_of(config_.model);
    options.seed = config_.run.seed;
    return options;
  }
  /// The size of the table of rotary positions, which all graphs share.
  std::int64_t n_positions() const {
    const std::int64_t of_answers = questions_ ? questions_->decoder_sizes().capacity : 0;
    return std::max({config_.data.sequence_length, sample_prompts_.capacity, of_answers});
  }

  void prepare_questions() {
    const std::string &set = config_.data.validation, place = config_.places({"evaluation.answers", "data.validation"});
    require(has_answers(set), ErrorCode::config_conflict,
            "{}evaluation.answers={} compares answers with those of data.validation, but {} has none: make a set of "
            "conversations with `lockstep data import chat`, or set evaluation.answers=0",
            place, config_.evaluation.answers, set);
    questions_ = std::make_shared<const Questions>(set, model_, answer_options(config_.evaluation));
  }

  /// evaluation.generate: for a model that is trained on conversations, each prompt is the message of a user. Synthetic
  /// tokens mean nothing, so no samples are written with them.
  void prepare_samples() {
    const std::string& path = train_set_->info().path;
    const std::string place = config_.places({"evaluation.generate"});
    if (path == "synthetic") {
      log::warning("{}evaluation.generate: synthetic data have no tokenizer, so no samples of text are written", place);
      return;
    }
    const data::InputFile file(path);
    const data::TextFile layout = data::open_text_file(file);
    const data::TextDescription& description = layout.description;
    tokenizer_ =
        std::make_shared<const text::Tokenizer>(text::Tokenizer::parse(path, data::read_tokenizer(file, layout)));
    std::optional<text::ChatTemplate> chat;
    if (!description.chat_template.empty())
      chat.emplace(description.chat_template, description.chat_template_source, description.special_tokens);
    SamplePrompts prompts{.texts = config_.evaluation.generate, .max_new_tokens = config_.evaluation.generate_tokens};
    std::int64_t longest = 0;
    for (const std::string& prompt : prompts.texts) {
      std::vector<std::int32_t>& ids = prompts.ids.emplace_back();
      const text::ChatMessage message{.role = "user", .content = prompt};
      if (chat)
        tokenizer_->encode(chat->render(std::span(&message, 1), text::ReplyBegin::add), ids,
                           text::TemplateTokens::omit);
      else
        tokenizer_->encode(prompt, ids);
      const std::int64_t n = std::ssize(ids);
      const char* const remedy = n > 0 ? "shorten" : "replace";
      require(n > 0 && n < model_.positions, ErrorCode::config_invalid,
              "{}evaluation.generate: a prompt has {} tokens, but the context of the model has {}, which must include "
              "the reply: {} \"{}\"",
              place, n, model_.positions, remedy, printable(prompt));
      longest = std::max(longest, n);
    }
    prompts.capacity = std::min(model_.positions, longest + prompts.max_new_tokens);
    for (const std::int64_t id : model_.end_tokens)
      if (id >= 0 && id < model_.vocabulary) prompts.end_tokens.push_back(static_cast<std::int32_t>(id));
    if (prompts.end_tokens.empty() && tokenizer_->end_token()) prompts.end_tokens.push_back(*tokenizer_->end_token());
    if (answer_end_) prompts.end_tokens.push_back(*answer_end_);
    sample_prompts_ = std::move(prompts);
  }

  /// The outputs of inference: the loss of each token, (batch, T).
  graph::ActivationId token_losses(graph::Graph& graph) const {
    const graph::ActivationId id = graph.add_activation(
        {.name = "losses", .shape = {graph.options().batch, config_.data.sequence_length}, .dtype = DType::fp32});
    graph::Activation& losses = graph.activation(id);
    losses.data = graph.memory().add(losses.name, losses.size_bytes(), /*persistent=*/true);
    return id;
  }
  std::shared_ptr<const data::TextSet> open(Split split) const {
    const Config::Data& d = config_.data;
    const bool is_train = split == Split::train;
    const std::string& path = is_train ? d.train : d.validation;
    require(!path.empty(), ErrorCode::config_invalid,
            "data.train: expected the path of a data set, or synthetic, found nothing");
    const data::TextWindows windows{
        .sequence_length = static_cast<int>(d.sequence_length), .pack = d.pack, .cross_documents = d.cross_documents};
    if (path == "synthetic")
      return data::make_synthetic_text(config_.run.seed, is_train ? d.synthetic_samples : d.synthetic_samples / 10 + 1,
                                       static_cast<int>(d.sequence_length), static_cast<int>(model_.vocabulary),
                                       is_train ? "train" : "val");
    auto set = data::open_text_set(path, is_train ? d.start : 0, is_train ? d.end : 0, windows);
    check_set(set.get());
    return set;
  }
  /// `set` may be null.
  void check_set(const data::TextSet* set) const {
    if (!set) return;
    const data::TextSetInfo& info = set->info();
    require(info.vocabulary_size <= model_.vocabulary, ErrorCode::model_mismatch,
            "{} has a vocabulary of {} tokens, but the model has {}: import it again with the tokenizer of the model, "
            "or train a model with a greater vocab_size",
            info.path, info.vocabulary_size, model_.vocabulary);
    require(adopted_hash_.empty() || info.tokenizer_hash.empty() || adopted_hash_ == info.tokenizer_hash,
            ErrorCode::model_mismatch,
            "{} was made with another tokenizer than {}: import it again with the tokenizer of the model", info.path,
            adopted_source_);
    check_tokenizer_of_model(info);
  }
  /// The token ids of the data must have the same meaning as those of the model in model.from.
  void check_tokenizer_of_model(const data::TextSetInfo& info) const {
    const std::string& from = config_.model.from;
    if (from == Config::Model{}.from || info.tokenizer_hash.empty()) return;
    if (!hash_of_model_) hash_of_model_ = tokenizer_hash(from);
    require(hash_of_model_->empty() || *hash_of_model_ == info.tokenizer_hash, ErrorCode::model_mismatch,
            "{} was made with another tokenizer than that of {}: import it again with --tokenizer {}", info.path, from,
            from);
  }

  /// Logs what the number of conversations alone does not show.
  void report_conversations(const data::TextSetInfo& info) const {
    if (info.n_truncated > 0)
      log::warning(
          "{} of the {} conversations of {} are longer than data.sequence_length={} and are truncated: raise it if "
          "their "
          "ends matter",
          info.n_truncated, info.n_documents, info.path, info.sequence_length);
    if (info.n_left_out > 0)
      log::warning("{} of the {} conversations of {} have no answer in their first {} tokens and are left out",
                   info.n_left_out, info.n_documents, info.path, info.sequence_length);
    log::info("Conversations: {} windows, {:.1f} % of which are tokens, the rest is padding", info.n_samples,
              100 * info.used_part);
  }

  /// Finds the token that ends answers, and warns unless the loss counts it at least once.
  void find_answer_end(const data::TextSetInfo& info) {
    const data::TextRange set(info.path, config_.data.start, config_.data.end);
    const text::Tokenizer tokenizer = text::Tokenizer::parse(info.path, set.tokenizer());
    answer_end_ = set.answer_end(tokenizer);
    const char* const outcome = "the model does not learn to end its answers";
    if (!answer_end_)
      return log::warning("the chat template of {} has no token of its own after an answer: {}", info.path, outcome);
    for (std::int64_t i = 0; i < set.n_documents(); ++i) {
      const data::Conversation conversation = set.conversation(i);
      for (const auto& [begin, end] : conversation.answers)
        for (std::int64_t at = begin; at < std::min<std::int64_t>(end, info.sequence_length); ++at)
          if (conversation.tokens[static_cast<std::size_t>(at)] == *answer_end_) return;
    }
    log::warning("no answer of {} includes its end token {} within {} tokens, so that no loss counts it: {}", info.path,
                 tokenizer.decode(std::span(&*answer_end_, 1)), info.sequence_length, outcome);
  }

  /// Must be called after check_tokenizer_of_model(). A run may be resumed after the directory of model.from is gone.
  void warn_without_tokenizer() const {
    const std::string& from = config_.model.from;
    if (hash_of_model_ && hash_of_model_->empty() && is_folder(from))
      log::warning(
          "{}model.from: {} has no tokenizer.json, so it cannot be checked that {} was made with the tokenizer of "
          "the model; copy that file there",
          config_.places({"model.from"}), from, train_set_->info().path);
  }

  Config config_;
  LlamaConfig model_;
  std::shared_ptr<const text::Tokenizer> tokenizer_;  // of the train set, if evaluation.generate is used
  std::optional<std::int32_t> answer_end_;            // the token that ends the answers of the train set
  SamplePrompts sample_prompts_;
  std::shared_ptr<const Questions> questions_;        // of evaluation.answers in a training; or null
  std::string adopted_hash_, adopted_source_;         // of the model that is evaluated
  mutable std::optional<std::string> hash_of_model_;  // of the tokenizer in model.from; takes tenths of a second
  std::shared_ptr<const data::TextSet> train_set_, validation_set_;
};

}  // namespace

std::unique_ptr<Task> make_language_modelling(const Config& config) {
  return std::make_unique<LanguageModelling>(config);
}

std::unique_ptr<Task> make_language_modelling(const Config& config, std::shared_ptr<const data::TextSet> train,
                                              std::shared_ptr<const data::TextSet> validation) {
  return std::make_unique<LanguageModelling>(config, std::move(train), std::move(validation));
}

}  // namespace lockstep::tasks

// Arguments that name runs and models, for all commands, and what a command needs to use a model: the backend that runs
// it, how images become inputs if its file does not record it, and the tokenizer of a language model.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "checkpoint/model_file.h"
#include "generate/reply_text.h"
#include "lockstep/backend.h"
#include "lockstep/config.h"
#include "models/llama_config.h"
#include "text/tokenizer.h"

namespace CLI {
class App;
}

namespace lockstep::commands {

/// Whether an operand is key=value. A file that exists may have a `=` in its name.
bool is_override(const std::string& operand);

/// The directory of a run, RUN, without a slash at its end. Throws usage if it is not one.
std::string run_argument(std::string path);
/// What RUN/status says; empty if there is none.
std::string status_of_run(const std::string& run);
/// The best checkpoint of a run directory, or else its newest one. Throws cannot_open.
std::string checkpoint_of_run(const std::string& folder);
/// The directory of the run to which a model belongs: RUN/checkpoints/FILE, RUN/FILE and RUN/model belong to RUN. Empty
/// if there is none.
std::string run_of(const std::string& model);
/// RUN/config.yaml; the defaults if there is none, or if `run` is empty.
Config config_of_run(const std::string& run);

/// What a command line says about models.
struct ModelRequest {
  std::vector<std::string> operands;     // runs, Hugging Face directories, files, configurations, key=value
  std::vector<std::string> checkpoints;  // --checkpoint
  std::string tokenizer;                 // --tokenizer; may be empty
  checkpoint::WeightsOf weights = checkpoint::WeightsOf::model;
};
/// --ema: the moving averages of the weights.
void add_averages(CLI::App& app, checkpoint::WeightsOf& weights, const std::string& description);
struct NamedModel {
  std::string path;        // of a file or of a Hugging Face directory
  std::string run;         // the directory of its run; may be empty
  bool is_option = false;  // a file that --checkpoint names
};
struct NamedModels {
  std::vector<NamedModel> models;          // at least one
  std::vector<std::string> configuration;  // files and overrides
  bool has_files = false;                  // the configuration has a file, which describes the model
};
/// Throws cannot_open or usage, with the accepted names.
NamedModels named_models(const ModelRequest& request);

/// How images become inputs according to the configuration, for a file that does not record it.
struct ConfiguredImages {
  nlohmann::json inference;  // as a file records it
  std::string missing;       // keys that the configuration lacks, with examples of values; empty: it has all of them
};
ConfiguredImages configured_images(const Config& config);

/// The backend for a model. `precision: auto` becomes the one in which the model was trained, or fp32 if the file
/// records none or the device lacks it; rank 0 logs what is notable about it. Throws not_supported if the device lacks
/// the one that the user chose.
std::unique_ptr<Backend> open_model_backend(Config& config, const checkpoint::ModelFile& file);

/// A language model with its tokenizer, and the tokens that end a reply.
struct TextModelSource {
  Config config;
  models::LlamaConfig model;
  checkpoint::ModelFile file;
  std::shared_ptr<const text::Tokenizer> tokenizer;
  std::string tokenizer_folder;  // with tokenizer_config.json, if there is one; may be empty
  std::vector<std::int32_t> end_tokens;
  std::string base;  // of adapters: where their base was read; may be empty
};

/// The files that a request names, and another one. Those of a base model are known only after reading
/// (TextModelSource::base).
std::vector<std::string> inputs_of(const ModelRequest& request, const std::string& other);

/// Reads everything. Throws Error, with the remedy, if the model is not a language model, if it has no tokenizer, or if
/// its tokenizer is not the one that it was trained with.
TextModelSource open_text_model(const ModelRequest& request);

/// Decodes tokens to text. Ids that the tokenizer does not have are skipped, since a model may have more of them.
generate::Decode decode_with(std::shared_ptr<const text::Tokenizer> tokenizer, text::SpecialTokens special);

}  // namespace lockstep::commands

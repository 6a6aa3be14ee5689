// The model card of a language model: README.md in a Hugging Face directory. Its head is YAML that the Hub reads
// (licence, base model, data sets, results); what follows is Markdown with tables of the data, the hyperparameters, the
// losses, the evaluation and the versions. A card has no path, host or user name: files are called by their base names.
//
// Source of the format: huggingface.co/docs/hub/model-cards, and huggingface_hub/repocard_data.py.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace lockstep::run {

/// What a card says if no licence was set. This is also an identifier of the Hub.
inline constexpr const char* kUnknownLicense = "unknown";

struct ModelCard {
  using Rows = std::vector<std::pair<std::string, std::string>>;

  static constexpr const char* kTraining = "training";
  struct DataSet {
    std::string use;   // kTraining, "validation"
    std::string name;  // "shakespeare_train"
    std::string documents, tokens;
  };
  struct Point {
    std::int64_t step = 0;
    double loss = 0;
  };
  struct Result {
    std::string of;  // "this model", "the best of the run"
    std::int64_t step = 0;
    std::vector<std::pair<std::string, double>> measures;  // "loss", "perplexity", ...
  };

  std::string name;
  std::string license;     // empty: unknown
  std::string model_type;  // "llama", "qwen2", "qwen3"
  std::string origin;      // "trained from random weights", "a conversion of ...": completes a sentence
  std::string base_model;  // "organisation/name" on the Hub, or empty
  bool has_tokenizer = false, has_chat_template = false;
  bool has_answer_end = false;  // generation_config.json names the token that ends answers
  bool is_adapter = false;      // the weights are adapters that PEFT loads
  std::string nf4_compute;      // of adapters trained beside a base in NF4: "bf16", in which it computed; else empty
  Rows model;
  std::vector<DataSet> data;
  Rows slices;  // the ranges of documents, "0 to 999", and the number of steps of each
  Rows hyperparameters;
  Rows training;  // how long, on how many ranks
  std::vector<Point> training_losses, validation_losses;
  std::vector<Result> results;
  std::string validation_set;
  Rows versions;
};

/// The text of README.md.
std::string text_of(const ModelCard& card);

/// "▁▃█": the means of equal parts of the values, at most `width` of them, from the least to the greatest. Values that
/// are not finite are left out.
std::string sparkline(const std::vector<double>& values, std::size_t width);

}  // namespace lockstep::run

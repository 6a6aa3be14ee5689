#include "run/model_card.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>

#include "base/numbers.h"
#include "base/printable.h"
#include "config/yaml_text.h"

namespace lockstep::run {
namespace {

constexpr std::size_t kCurveRows = 16;  // rows of the table for each kind of loss
constexpr std::size_t kSparklineWidth = 60;
constexpr std::size_t kMaxCellBytes = 4000;

/// Escapes text so that Markdown shows it unchanged, also in a table cell.
std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : printable(text, kMaxCellBytes)) {
    if (std::string_view("\\`*[]<>|").find(c) != std::string_view::npos) out += '\\';
    out += c;
  }
  return out;
}

/// A code span. It cannot contain its own delimiter, and a vertical bar would end the table cell.
std::string code(const std::string& text) {
  std::string inside = printable(text);
  std::ranges::replace(inside, '`', '\'');
  for (std::size_t at = inside.find('|'); at != std::string::npos; at = inside.find('|', at + 2))
    inside.insert(at, "\\");
  return inside.empty() ? "" : "`" + inside + "`";
}

/// A YAML scalar, in plain style where YAML allows it.
std::string yaml(const std::string& text) { return config::quoted(printable(text)); }

/// A number that is valid in YAML and JSON; the Hub accepts no others.
std::string number(double value) { return std::isfinite(value) ? fmt::format("{:.6g}", value) : "\"not finite\""; }

std::string section(const std::string& title) { return "\n## " + title + "\n\n"; }

std::string table(const std::string& head, const ModelCard::Rows& rows) {
  std::string out = head + "\n|---|---|\n";
  for (const auto& [key, value] : rows) out += fmt::format("| {} | {} |\n", escaped(key), escaped(value));
  return out;
}

// ----------------------------------------------------------------------------------------------------------- the head

std::string head(const ModelCard& card) {
  std::string out =
      fmt::format("---\nlicense: {}\nlibrary_name: {}\npipeline_tag: text-generation\ntags:\n- lockstep\n- {}\n",
                  card.license.empty() ? kUnknownLicense : card.license, card.is_adapter ? "peft" : "transformers",
                  yaml(card.model_type));
  if (card.is_adapter) out += "- lora\n";
  if (card.has_chat_template) out += "- conversational\n";
  if (!card.base_model.empty()) out += fmt::format("base_model: {}\n", yaml(card.base_model));
  if (card.results.empty()) return out + "---\n";
  std::string names, values;
  for (const auto& [measure, value] : card.results.front().measures) {
    names += fmt::format("- {}\n", yaml(measure));
    values += fmt::format("    - type: {}\n      value: {}\n", yaml(measure), number(value));
  }
  return out + fmt::format(
                   "metrics:\n{0}model-index:\n- name: {1}\n  results:\n  - task:\n      type: text-generation\n"
                   "    dataset:\n      name: {2}\n      type: {2}\n    metrics:\n{3}---\n",
                   names, yaml(card.name), yaml(card.validation_set), values);
}

// ----------------------------------------------------------------------------------------------------------- the body

/// The bitsandbytes configuration that quantises the base as in training.
std::string quantization_of(const ModelCard& card) {
  const std::string type = card.nf4_compute == "bf16" ? "bfloat16" : card.nf4_compute == "fp16" ? "float16" : "float32";
  return fmt::format(
      "    quantization = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type=\"nf4\",\n"
      "                                      bnb_4bit_use_double_quant=True, bnb_4bit_compute_dtype=\"{}\")\n",
      type);
}

std::string usage(const ModelCard& card) {
  const bool is_quantised = !card.nf4_compute.empty();
  std::vector<std::string> of_transformers;
  if (!card.is_adapter) of_transformers.emplace_back("AutoModelForCausalLM");
  if (card.has_tokenizer) of_transformers.emplace_back("AutoTokenizer");
  if (is_quantised) of_transformers.emplace_back("BitsAndBytesConfig");
  // PEFT reads that of the base, whose answers may end with another token.
  const bool names_generation = card.is_adapter && card.has_answer_end;
  if (names_generation) of_transformers.emplace_back("GenerationConfig");
  const char* const model = card.is_adapter ? "AutoPeftModelForCausalLM" : "AutoModelForCausalLM";
  std::string out = "\n";
  if (is_quantised) out += "The adapters were trained beside a base in NF4, and expect it.\n\n";
  if (card.is_adapter) out += fmt::format("    from peft import {}\n", model);
  if (!of_transformers.empty())
    out += fmt::format("    from transformers import {}\n", fmt::join(of_transformers, ", "));
  if (card.has_tokenizer) out += "    tokenizer = AutoTokenizer.from_pretrained(\"DIRECTORY\")\n";
  if (is_quantised) out += quantization_of(card);
  out += fmt::format("    model = {}.from_pretrained(\"DIRECTORY\"{})\n", model,
                     is_quantised ? ", quantization_config=quantization" : "");
  if (!card.has_tokenizer) return out;
  out += card.has_chat_template
             ? "    messages = [{\"role\": \"user\", \"content\": \"Hello\"}]\n    inputs = "
               "tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_tensors=\"pt\", "
               "return_dict=True)\n"
             : "    inputs = tokenizer(\"Once upon a time\", return_tensors=\"pt\")\n";
  if (names_generation) out += "    model.generation_config = GenerationConfig.from_pretrained(\"DIRECTORY\")\n";
  return out + "    print(tokenizer.decode(model.generate(**inputs, max_new_tokens=100)[0]))\n";
}

std::string license_of(const ModelCard& card) {
  if (!card.license.empty()) return fmt::format("{}\n", code(card.license));
  return "Unknown. `model.license` of the configuration, or `--license` of `lockstep checkpoint export`, sets it.\n";
}

std::string data_of(const ModelCard& card) {
  if (card.data.empty()) return "Not recorded.\n";
  std::string out = "| use | data set | documents | tokens |\n|---|---|---|---|\n";
  for (const ModelCard::DataSet& set : card.data)
    out += fmt::format("| {} | {} | {} | {} |\n", set.use, code(set.name), set.documents, set.tokens);
  if (card.slices.empty()) return out;
  return out + "\nSlices of the training data, in the order of training:\n\n" +
         table("| documents | steps |", card.slices);
}

/// At most `n` of the points, among them the first and the last.
std::vector<ModelCard::Point> some_of(const std::vector<ModelCard::Point>& points, std::size_t n) {
  if (points.size() <= n) return points;
  std::vector<ModelCard::Point> out;
  for (std::size_t i = 0; i < n; ++i) out.push_back(points[i * (points.size() - 1) / (n - 1)]);
  return out;
}

std::string curve_of(const ModelCard& card) {
  if (card.training_losses.empty() && card.validation_losses.empty()) return "";
  std::string out = section("Losses");
  const auto line = [&](const char* what, const std::vector<ModelCard::Point>& points) {
    std::vector<double> values;
    for (const ModelCard::Point& point : points) values.push_back(point.loss);
    if (points.size() < 2) return;
    out += fmt::format("    {:<10} {}  {} to {}\n", what, sparkline(values, kSparklineWidth),
                       fixed_text(values.front(), 3), fixed_text(values.back(), 3));
  };
  line("training", card.training_losses);
  line("validation", card.validation_losses);
  if (card.training_losses.size() > 1 || card.validation_losses.size() > 1) out += "\n";
  std::map<std::int64_t, std::pair<std::string, std::string>> rows;
  for (const ModelCard::Point& point : some_of(card.training_losses, kCurveRows))
    rows[point.step].first = fixed_text(point.loss, 4);
  for (const ModelCard::Point& point : some_of(card.validation_losses, kCurveRows))
    rows[point.step].second = fixed_text(point.loss, 4);
  out += "| step | training loss | validation loss |\n|---|---|---|\n";
  for (const auto& [step, losses] : rows) out += fmt::format("| {} | {} | {} |\n", step, losses.first, losses.second);
  return out;
}

std::string evaluation_of(const ModelCard& card) {
  if (card.results.empty()) return "The model was not evaluated.\n";
  std::string out = fmt::format("On {}:\n\n| | step |", code(card.validation_set)), line = "|---|---|";
  for (const auto& [measure, value] : card.results.front().measures) {
    out += fmt::format(" {} |", escaped(measure));
    line += "---|";
  }
  out += "\n" + line + "\n";
  for (const ModelCard::Result& result : card.results) {
    out += fmt::format("| {} | {} |", escaped(result.of), result.step);
    for (const auto& [measure, value] : result.measures) out += fmt::format(" {} |", fixed_text(value, 4));
    out += "\n";
  }
  return out;
}

}  // namespace

std::string sparkline(const std::vector<double>& values, std::size_t width) {
  constexpr std::array kBlocks{"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
  std::vector<double> finite;
  std::ranges::copy_if(values, std::back_inserter(finite), [](double x) { return std::isfinite(x); });
  const std::size_t n = std::min(finite.size(), width);
  std::vector<double> means;
  for (std::size_t i = 0; i < n; ++i) {
    const std::size_t begin = i * finite.size() / n, end = (i + 1) * finite.size() / n;
    double sum = 0;
    for (std::size_t k = begin; k < end; ++k) sum += finite[k] / static_cast<double>(end - begin);
    means.push_back(sum);
  }
  if (means.empty()) return "";
  const auto [least, greatest] = std::ranges::minmax(means);
  const double range = greatest - least;
  std::string out;
  for (const double mean : means) {
    const double part = range > 0 ? (mean - least) / range : 0;
    out += kBlocks[std::min(kBlocks.size() - 1, static_cast<std::size_t>(part * kBlocks.size()))];
  }
  return out;
}

std::string text_of(const ModelCard& card) {
  std::string out = head(card);
  out += fmt::format("\n# {}\n\nA language model, {} with Lockstep.\n", escaped(card.name), card.origin);
  out += usage(card);
  out += section("Licence") + license_of(card);
  out += section("Model") + table("| | |", card.model);
  out += section("Data") + data_of(card);
  if (!card.hyperparameters.empty()) out += section("Hyperparameters") + table("| key | value |", card.hyperparameters);
  if (!card.training.empty()) out += section("Training") + table("| | |", card.training);
  out += curve_of(card);
  out += section("Evaluation") + evaluation_of(card);
  out += section("Versions") + table("| | |", card.versions);
  return out;
}

}  // namespace lockstep::run

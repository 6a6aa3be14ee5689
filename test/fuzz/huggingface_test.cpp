// also: Corpus.huggingface
// Fuzz target: models of other programs. The first byte of an input says what follows:
//   0, 1: config.json, 0, the index, 0, the JSON header of a .safetensors file, 0, its data. They become a Hugging Face
//      directory; with 1, its tensors are in model.safetensors, so that the index is not read. The length of the
//      header is inserted before it.
//   otherwise: a llama2.c file.
// The model that such a file describes is then checked against its tensors.
#include "checkpoint/huggingface.h"
#include "checkpoint/llama2c.h"
#include "models/llama_tensors.h"
#include "test/fuzz/fuzz.h"

namespace {

using namespace lockstep;

/// A directory with the name of a scratch file.
class ScratchModel {
 public:
  ScratchModel() : path_(name_.path()) { std::filesystem::create_directory(path_); }
  ~ScratchModel() { std::filesystem::remove_all(path_); }
  const std::string& path() const { return path_; }
  void write(const std::string& name, std::string_view bytes) const {
    std::ofstream(path_ + "/" + name, std::ios::binary | std::ios::trunc) << bytes;
  }
  void remove(const std::string& name) const { std::filesystem::remove(path_ + "/" + name); }

 private:
  fuzz::ScratchFile name_{".model"};
  std::string path_;
};

/// The text up to the next 0, which is dropped.
std::string_view take_text(std::string_view& input) {
  const std::string_view text = input.substr(0, input.find('\0'));
  input.remove_prefix(std::min(text.size() + 1, input.size()));
  return text;
}

void check(const checkpoint::ModelFile& file) {
  models::TensorShapes shapes;
  for (const checkpoint::NamedTensor& tensor : file.tensors) {
    if (static_cast<std::size_t>(tensor.shape.n_elements()) != tensor.values.size()) std::abort();
    shapes[tensor.name] = tensor.shape;
  }
  const models::LlamaConfig config = models::parse_llama_config(file.config, "config.json");
  const std::string written = models::to_json(config).dump();
  if (!(models::parse_llama_config(written, "config.json") == config)) std::abort();
  models::check_llama_tensors(config, shapes, file.path);
}

}  // namespace

FUZZ_TARGET(huggingface) {
  static const ScratchModel model;
  static const fuzz::ScratchFile file(".bin");
  std::string_view input(reinterpret_cast<const char*>(data), size);
  const char kind = input.empty() ? '\0' : input.front();
  input.remove_prefix(std::min<std::size_t>(1, input.size()));
  if (kind != '\0' && kind != '\1') {
    file.write(input);
    fuzz::no_crash([&] { check(checkpoint::read_llama2c(file.path())); });
    return 0;
  }
  model.write("config.json", take_text(input));
  model.write("model.safetensors.index.json", take_text(input));
  const std::string_view header = take_text(input);
  const std::uint64_t header_bytes = header.size();
  std::string weights(reinterpret_cast<const char*>(&header_bytes), sizeof header_bytes);
  weights.append(header).append(input);
  model.remove(kind == '\0' ? "model.safetensors" : "model-1.safetensors");
  model.write(kind == '\0' ? "model-1.safetensors" : "model.safetensors", weights);
  fuzz::no_crash([&] { check(checkpoint::read_model_file(model.path())); });
  return 0;
}

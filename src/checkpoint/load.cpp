// Reads a checkpoint, completely or as far as a model needs it. Not collective: every rank reads the file.
#include <algorithm>

#include "checkpoint/checkpoint.h"
#include "checkpoint/finite.h"
#include "checkpoint/reader.h"
#include "lockstep/error.h"

namespace lockstep::checkpoint {

StateJson load(const std::string& path, const std::vector<TensorTarget>& tensors) {
  Reader reader(path);
  reader.load(tensors);
  return reader.state();
}

LoadedFile load_all(const std::string& path) {
  Reader reader(path);
  reader.check_blocks();
  LoadedFile file;
  for (const TensorEntry& entry : reader.tensors()) {
    LoadedTensor tensor{entry.path, entry.shape,
                        std::vector<float>(static_cast<std::size_t>(entry.shape.n_elements()))};
    reader.read(entry, tensor.values);
    file.tensors.push_back(std::move(tensor));
  }
  return file;
}

Verdict verify(const std::string& path) {
  Verdict verdict;
  try {
    Reader reader(path);
    reader.check_blocks();
    for (const TensorEntry& tensor : reader.tensors())
      require(reader.is_sound(tensor), ErrorCode::checkpoint_damaged,
              "{} was written incorrectly: {} does not match its checksum", path, tensor.path);
    std::vector<float> values;
    for (const TensorEntry& tensor : reader.tensors()) {
      values.resize(static_cast<std::size_t>(tensor.shape.n_elements()));
      reader.read(tensor, values);
      require_usable(path, tensor.path, values);
    }
    verdict.step = reader.step();
    verdict.good = true;
    verdict.sentence = fmt::format("{} is valid: {} bytes, {} tensors, step {}", path, reader.header().file_bytes,
                                   reader.tensors().size(), verdict.step);
  } catch (const Error& error) {
    verdict.code = error.code();
    verdict.sentence = error.what();
  }
  return verdict;
}

}  // namespace lockstep::checkpoint

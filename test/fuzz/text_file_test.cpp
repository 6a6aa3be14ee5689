// also: Corpus.text_file
// Fuzz target: text sets. The first byte of the input selects what follows. 0: a recipe (hdf5_recipe.h) for the HDF5
// part, with the user block that import would write. Otherwise: a good file with other numbers in its user block, whose
// checksum is recomputed, and with other bytes in its documents and tokens.
#include "data/text_file.h"

#include "data/data_file.h"
#include "data/text_set.h"
#include "test/fuzz/data_file_recipe.h"

namespace {

using namespace lockstep;
using namespace lockstep::fuzz;

constexpr std::uint8_t kBlockFields = 10;  // u64 words (data/user_block.h)

void make_hdf5_part(const std::string& path, Input& in) {
  const Hdf5Id file = new_hdf5_file(path, hdf5::kUserBlockBytes);
  const hsize_t n = 1 + in.below(4);
  make_data_set(file.get(), "tokens", in.below(2) == 0 ? H5T_STD_U16LE : H5T_STD_U32LE, {n}, in, "/documents");
  make_data_set(file.get(), "documents", H5T_STD_U64LE, {2}, in, "/tokens");
  make_data_set(file.get(), "tokenizer", H5T_STD_U8LE, {8}, in, "/tokens");
  make_data_set(file.get(), "tokens_xxh3", H5T_STD_U64LE, {1}, in, "/documents");
  const bool has_answers = in.below(2) == 1;
  if (has_answers) make_data_set(file.get(), "answers", H5T_STD_U64LE, {1, 2}, in, "/documents");
  Attributes attributes(file.get(), in);
  attributes.words("format", {"lockstep-text"});
  attributes.integer("format_version", data::kTextFormatVersion);
  attributes.integer("vocabulary_size", 100);
  attributes.words("tokenizer_hash", {"0123456789abcdef"});
  attributes.integer("end_token", 99);
  attributes.words("source", {"a fuzzer"});
  attributes.words("documents_xxh3", {"0123456789abcdef"});
  if (!has_answers) return;
  attributes.words("answers_xxh3", {"0123456789abcdef"});
  attributes.words("chat_template", {"{{ messages }}"});
  attributes.words("special_tokens", {"{\"bos_token\": \"<s>\"}"});
}

/// The positions of the data sets; if they cannot be located, an empty position, which the reader must detect.
data::UserBlock places_in(const std::string& path) {
  data::ByteRange tokens{hdf5::kUserBlockBytes, 0}, documents = tokens;
  try {
    const hdf5::Reader hdf5 = data::open_hdf5(path);
    const hdf5::DatasetPlace first = hdf5.dataset("tokens"), second = hdf5.dataset("documents");
    tokens = {first.offset, first.size_bytes};
    documents = {second.offset, second.size_bytes};
  } catch (const Error&) {
  }
  return {data::StoredBytes::contiguous(tokens), documents, hdf5::FileKind::text};
}

void read_windows(const std::string& path, const data::TextWindows& windows) {
  no_crash([&] {
    const auto set = data::open_text_set(path, 0, 0, windows);
    std::vector<std::vector<std::byte>> fields;
    for (const data::Field& field : set->fields()) fields.emplace_back(field.size_bytes());
    const std::vector<std::span<std::byte>> targets(fields.begin(), fields.end());
    for (const std::int64_t sample : {std::int64_t{0}, set->info().n_samples - 1}) set->read(sample, 0, targets);
  });
}

void read_all_of(const std::string& path) {
  no_crash([&] {
    const data::InputFile file(path);
    const data::TextFile layout = data::open_text_file(file);
    data::verify_text_file(file, layout, {});
    data::read_tokenizer(file, layout);
  });
  read_windows(path, {.sequence_length = 2});
  read_windows(path, {.sequence_length = 3, .cross_documents = true});
  read_windows(path, {.sequence_length = 4, .pack = false});
}

std::string make_good_file() {
  const ScratchFile file(".good.h5");
  data::TextFileWriter writer(file.path(), true, 100);
  for (const std::int32_t n : {3, 1, 4}) {
    writer.append(std::vector<std::int32_t>(static_cast<std::size_t>(n), n));
    writer.end_document();
  }
  writer.finish({.vocabulary_size = 100, .tokenizer_hash = "h", .end_token = 99, .source = "a fuzzer"}, "{}");
  return content_of(file.path());
}

/// A good file, with another user block, other documents and other tokens if the input requests them.
std::string with_changes(Input& in) {
  static const std::string good = make_good_file();
  std::string bytes = good;
  std::array<std::uint64_t, 4> places{};  // offset and length of tokens and of documents
  std::memcpy(places.data(), bytes.data() + 32, sizeof places);
  change_user_block(bytes, kBlockFields, in);
  for (std::uint8_t n = in.below(4); n > 0; --n) {
    const auto position = in.take<std::uint64_t>();
    std::memcpy(bytes.data() + places[2] + 8 * in.below(4), &position, sizeof position);
  }
  const std::string tokens = in.text(16);
  std::memcpy(bytes.data() + places[0], tokens.data(), tokens.size());
  if (in.below(4) == 3) bytes.resize(in.take<std::uint16_t>() % (bytes.size() + 64));
  return bytes;
}

}  // namespace

FUZZ_TARGET(text_file) {
  static const ScratchFile file(".h5");
  Input in(data, size);
  if (in.below(4) != 0) {
    const std::string bytes = with_changes(in);
    if (bytes.size() < 16) return 0;  // shorter files have no magic number and go to the limited child
    file.write(bytes);
    read_all_of(file.path());
    return 0;
  }
  make_hdf5_part(file.path(), in);
  try {
    data::write_user_block(file.path(), places_in(file.path()));
  } catch (const Error&) {
    return 0;  // tokens and documents at the same position: never written by import
  }
  read_all_of(file.path());
  return 0;
}

// The layout of an image or text file as bytes, which a child process that reads the file sends to its parent
// (data_file.h).
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "base/optional_json.h"
#include "data/image_file.h"
#include "data/text_file.h"
#include "lockstep/error.h"

namespace lockstep::data {

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(ByteRange, offset, size_bytes)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(StoredBytes, size_bytes, chunk_bytes, offsets)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(ImageSetInfo, path, n_samples, content_hash, reader_bytes, split, first_sample,
                                   height, width, channels, classes, mean, stddev, class_names)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(EncodedIndex, formats, is_decoded, offsets, sizes, largest_bytes, largest_pixels,
                                   min_height, min_width, max_height, max_width)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(ImageFile, info, encoded, images, labels, source, images_xxh3, labels_xxh3,
                                   has_user_block)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(TextDescription, vocabulary_size, tokenizer_hash, end_token, source, chat_template,
                                   chat_template_source, special_tokens)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(TextFile, description, n_documents, n_tokens, n_answers, token_bytes, tokens,
                                   documents, tokenizer, answers, block_hashes, documents_xxh3, answers_xxh3,
                                   has_user_block)

/// Texts in the layout need not be UTF-8.
template <typename Layout>
std::string bytes_of_layout(const Layout& layout) {
  std::string bytes;
  nlohmann::json::to_cbor(nlohmann::json(layout), bytes);
  return bytes;
}

/// Throws data_format if the bytes are not those of a layout.
template <typename Layout>
Layout layout_of(const InputFile& file, const std::string& bytes) {
  try {
    return nlohmann::json::from_cbor(bytes).get<Layout>();
  } catch (const nlohmann::json::exception&) {
    fail(ErrorCode::data_format, "{} cannot be opened as HDF5: the library overwrote memory", file.path());
  }
}

}  // namespace lockstep::data

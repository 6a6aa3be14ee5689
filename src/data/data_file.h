// What the HDF5 files of image sets (image_file.h) and text sets (text_file.h) have in common: how they are opened and
// checked before a sample is read, and how their bytes are compared with checksums.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "base/json.h"
#include "data/image_file.h"
#include "data/text_file.h"
#include "data/user_block.h"
#include "hdf5/reader.h"
#include "lockstep/error.h"

namespace lockstep::data {

/// The user block, whose checksums match the metadata. Empty if another program wrote the file. Throws
/// data_format if it is a data set of another kind or not an HDF5 file.
std::optional<UserBlock> checked_user_block(const InputFile& file, hdf5::FileKind kind);
/// Throws data_damaged if a file whose layout is that of a data set, without a valid user block, has another one: `data
/// import` wrote it, and its first bytes were overwritten. HDF5 is at the very beginning of files of other programs.
void require_no_user_block(const InputFile& file, hdf5::FileKind kind);

/// Opens the file. Its errors have the codes of data sets.
hdf5::Reader open_hdf5(const std::string& path);
/// Throws data_format unless the attribute `format` has this value. Returns format_version, which is from 1 to
/// `newest`.
std::int64_t read_format_version(const hdf5::Reader& hdf5, const std::string& path, const char* format,
                                 std::int64_t newest);
/// The attribute of the root with this name, as valid UTF-8; empty if there is none.
std::string optional_text(const hdf5::Reader& hdf5, const char* name);

/// Throws data_damaged unless the contiguous data set /name is inside the file.
void check_inside(const InputFile& file, const std::string& name, const hdf5::DatasetPlace& place);
/// Throws data_format unless /name has the expected type and shape, which `expected` describes in the message.
void check_kind(bool good, const InputFile& file, const std::string& name, const char* expected,
                const hdf5::DatasetPlace& place);
[[noreturn]] void fail_user_block(const InputFile& file, hdf5::FileKind kind);

/// A file without a user block has nothing with which its length and metadata could be compared.
Verification begin_verification(bool has_user_block);
/// Compares the bytes of /name with their checksum, 16 hex digits, which may be missing.
void verify_bytes(const InputFile& file, const char* name, const StoredBytes& place, const std::string& stored,
                  const std::function<void(std::uint64_t bytes)>& progress, Verification& out);

// ---- The child process that reads a file ----------------------------------------------------------------------------

struct ChildVerdict {
  bool good = false;
  std::string result;             // what `read` returned
  std::optional<ErrorCode> code;  // of the Error that it threw
  std::string sentence;           // the text of that Error, or how the child ended
};

inline constexpr unsigned kChildSeconds = 30;

/// Runs a function in a child process with limits on memory and time. A library that parses a damaged or hostile file
/// may crash, loop, request all memory or overwrite memory there without harm to this process (DESIGN, decision 11).
///
/// `read` reports success by returning. It runs in a fork of this process: it must use neither MPI nor threads, and
/// its changes to memory are lost. What it finds must therefore be in the text that it returns, which may have any
/// bytes. The child ends with this process, and when throw_if_stopped() throws here.
ChildVerdict run_in_limited_child(const std::function<std::string()>& read, unsigned max_seconds = kChildSeconds);

/// What `read` returns, which reads a file through HDF5 in a limited child process. This process does not open the file
/// with HDF5, since damage that the child survives may still overwrite memory. A user block does not exclude damage:
/// its checksums can be forged. Throws the error of `read`, and data_format if the child crashes.
std::string read_in_child(const InputFile& file, const std::function<std::string()>& read);

/// Throws the error of a child that could not read the file.
[[noreturn]] void fail_foreign(const InputFile& file, const ChildVerdict& verdict);

// The layout of a file as bytes, which the child sends to its parent.

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

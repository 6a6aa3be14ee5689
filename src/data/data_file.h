// What the HDF5 files of image sets (image_file.h) and text sets (text_file.h) have in common: how they are opened and
// checked before a sample is read, and how their bytes are compared with checksums.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "data/file.h"
#include "data/limited_child.h"
#include "data/user_block.h"
#include "hdf5/reader.h"

namespace lockstep::data {

/// The user block, whose checksums match the metadata. Empty if another program wrote the file. Throws
/// data_format if it is a data set of another kind or not an HDF5 file.
std::optional<UserBlock> checked_user_block(const InputFile& file, hdf5::FileKind kind);
/// Throws data_damaged if a file whose layout is that of a data set, without a valid user block, has another one: `data
/// import` wrote it, and its first bytes were overwritten. HDF5 is at the very beginning of files of other programs.
void require_no_user_block(const InputFile& file, hdf5::FileKind kind);
/// What `read` returns, which reads a file through HDF5 in a limited child process. This process does not open the file
/// with HDF5, since damage that the child survives may still overwrite memory. A user block does not exclude damage:
/// its checksums can be forged. Throws the error of `read`, and data_format if the child crashes.
std::string read_in_child(const InputFile& file, const std::function<std::string()>& read);

/// Throws the error of a child that could not read the file.
[[noreturn]] void fail_foreign(const InputFile& file, const ChildVerdict& verdict);

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

}  // namespace lockstep::data

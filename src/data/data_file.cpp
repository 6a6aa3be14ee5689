#include "data/data_file.h"

#include <fmt/ranges.h>

#include <array>

#include "base/printable.h"
#include "base/utf8.h"
#include "lockstep/error.h"

namespace lockstep::data {
namespace {

/// HDF5 allows its signature at 0 and, after a user block, at every power of two from 512 on.
std::optional<std::uint64_t> find_hdf5_signature(const InputFile& file) {
  constexpr std::array<unsigned char, 8> kSignature = {0x89, 'H', 'D', 'F', '\r', '\n', 0x1a, '\n'};
  for (std::uint64_t offset = 0; offset + kSignature.size() <= file.size_bytes();
       offset = offset == 0 ? 512 : 2 * offset) {
    std::array<unsigned char, 8> found{};
    file.read(offset, std::as_writable_bytes(std::span(found)), "its signature");
    if (found == kSignature) return offset;
  }
  return std::nullopt;
}

const char* kind_name(hdf5::FileKind kind) { return kind == hdf5::FileKind::text ? "text" : "images"; }

}  // namespace

std::optional<UserBlock> checked_user_block(const InputFile& file, hdf5::FileKind kind) {
  require(file.size_bytes() > 0, ErrorCode::data_damaged, "{} is empty (0 bytes)", file.path());
  std::optional<UserBlock> block = read_user_block(file);
  if (block)
    require(block->kind == kind, ErrorCode::data_format, "{} is a data set of {}; expected one of {}", file.path(),
            kind_name(block->kind), kind_name(kind));
  else
    require(find_hdf5_signature(file).has_value(), ErrorCode::data_format, "{} ({} bytes) is not an HDF5 file",
            file.path(), file.size_bytes());
  return block;
}

void fail_foreign(const InputFile& file, const ChildVerdict& verdict) {
  if (verdict.code) throw Error(*verdict.code, verdict.sentence);
  fail(ErrorCode::data_format, "{} cannot be opened as HDF5: {}", file.path(), verdict.sentence);
}

std::string read_in_child(const InputFile& file, const std::function<std::string()>& read) {
  const ChildVerdict verdict = run_in_limited_child(read);
  if (!verdict.good) fail_foreign(file, verdict);
  return verdict.result;
}

void require_no_user_block(const InputFile& file, hdf5::FileKind kind) {
  const std::uint64_t block_bytes = find_hdf5_signature(file).value_or(0);
  require(block_bytes == 0, ErrorCode::data_damaged,
          "{} is damaged in its user block (bytes 0 to {}), which does not begin with {}, so that nothing protects its "
          "metadata; a file of another program must have no user block",
          file.path(), block_bytes - 1, (kind == hdf5::FileKind::text ? hdf5::kTextMagic : hdf5::kImagesMagic).data());
}

hdf5::Reader open_hdf5(const std::string& path) {
  return {path, {.unreadable = ErrorCode::data_format, .truncated = ErrorCode::data_damaged}};
}

std::int64_t read_format_version(const hdf5::Reader& hdf5, const std::string& path, const char* format,
                                 std::int64_t newest) {
  const std::string found = optional_text(hdf5, "format");
  require(found == format, ErrorCode::data_format,
          "{} is an HDF5 file, but not a data set of Lockstep: it lacks the attribute format='{}'{}", path, format,
          found.empty() ? "" : fmt::format(" and has format='{}'", found));
  const std::int64_t version = hdf5.integer("format_version");
  require(version >= 1 && version <= newest, ErrorCode::data_format, "{} has format version {}; this program reads {}",
          path, version, newest == 1 ? "version 1" : fmt::format("versions 1 to {}", newest));
  return version;
}

std::string optional_text(const hdf5::Reader& hdf5, const char* name) {
  return hdf5.has_attribute(name) ? valid_utf8(hdf5.text(name)) : std::string();
}

void check_inside(const InputFile& file, const std::string& name, const hdf5::DatasetPlace& place) {
  require(place.offset <= file.size_bytes() && place.size_bytes <= file.size_bytes() - place.offset,
          ErrorCode::data_damaged, "{} is truncated: '/{}' needs bytes {} to {}, but the file has {}", file.path(),
          name, place.offset, place.offset + place.size_bytes, file.size_bytes());
}

void check_kind(bool good, const InputFile& file, const std::string& name, const char* expected,
                const hdf5::DatasetPlace& place) {
  require(good, ErrorCode::data_format, "{}: '/{}' must be {}, but is {} ({})", file.path(), name, expected, place.type,
          fmt::join(place.dims, ", "));
}

void fail_user_block(const InputFile& file, hdf5::FileKind kind) {
  fail(ErrorCode::data_damaged, "{}: its user block and its HDF5 metadata disagree about the position of the {}",
       file.path(), part_names(kind).samples);
}

Verification begin_verification(bool has_user_block) {
  Verification out;
  if (!has_user_block) out.unchecked.emplace_back("the length and the metadata: the file has no user block");
  return out;
}

void verify_bytes(const InputFile& file, const char* name, const StoredBytes& place, const std::string& stored,
                  const std::function<void(std::uint64_t)>& progress, Verification& out) {
  if (stored.empty()) {
    out.unchecked.push_back(fmt::format("'/{0}': the file has no {0}_xxh3", name));
    return;
  }
  const std::string found = hash_text(hash_stored(file, place, fmt::format("/{}", name), progress));
  if (found == stored) return;
  const std::string where = place.chunked()
                                ? fmt::format("{} chunks of {} bytes", place.offsets.size(), place.chunk_bytes)
                                : fmt::format("bytes {} to {}", place.offsets[0], place.offsets[0] + place.size_bytes);
  out.damaged.push_back(fmt::format("{}: '/{}' ({}) is damaged: its xxh3 is {}, but {} is stored", file.path(), name,
                                    where, found, stored));
}

}  // namespace lockstep::data

#include "data/archive.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "base/loaded_library.h"
#include "data/data_file.h"
#include "lockstep/error.h"

namespace lockstep::data {
namespace {

// The functions and numbers of archive.h, which have not changed since libarchive 3.0.
constexpr int kEnd = 1, kWarning = -20;
constexpr unsigned kRegularFile = 0100000;

constexpr LoadedLibrary kLibarchive{.name = "libarchive",
                                    .use = "reading archives and compressed files",
                                    .package = "libarchive13",
                                    .variable = "LOCKSTEP_LIBARCHIVE",
                                    .files = {"libarchive.so.13", "libarchive.so"}};
using Symbol = LoadedFunction<kLibarchive>;

struct Library {
  void* (*create)() = Symbol("archive_read_new");
  std::array<int (*)(void*), 5> supported{
      Symbol("archive_read_support_format_tar"), Symbol("archive_read_support_format_raw"),
      Symbol("archive_read_support_filter_gzip"), Symbol("archive_read_support_filter_zstd"),
      Symbol("archive_read_support_filter_xz")};
  int (*open)(void*, const char* path, std::size_t block_bytes) = Symbol("archive_read_open_filename");
  int (*next_header)(void*, void** entry) = Symbol("archive_read_next_header");
  ssize_t (*read)(void*, void* target, std::size_t) = Symbol("archive_read_data");
  const char* (*error)(void*) = Symbol("archive_error_string");
  int (*n_filters)(void*) = Symbol("archive_filter_count");
  std::int64_t (*position)(void*, int filter) = Symbol("archive_filter_bytes");
  const char* (*path)(void* entry) = Symbol("archive_entry_pathname");
  const char* (*path_utf8)(void* entry) = Symbol("archive_entry_pathname_utf8");
  unsigned (*type)(void* entry) = Symbol("archive_entry_filetype");
  std::int64_t (*size)(void* entry) = Symbol("archive_entry_size");
  int (*n_holes)(void* entry) = Symbol("archive_entry_sparse_count");
  const char* (*version)() = Symbol("archive_version_string");
};
const Library& library() {
  static const Library loaded;
  return loaded;
}

constexpr std::size_t kBlockBytes = 1u << 20;
constexpr std::uint64_t kMaxRatio = 100;             // of text, which shrinks most when it is compressed
constexpr std::uint64_t kBytesPerSecond = 4u << 20;  // of a slow file system

/// In the child: a list of [name, whether it is in scratch, offset, bytes].
nlohmann::json unpack(const InputFile& file, const Scratch& scratch,
                      const std::function<bool(const std::string& name)>& wanted) {
  const Library& lib = library();
  void* const archive = lib.create();  // not freed, since the process ends
  const auto check = [&](std::int64_t result) {
    require(result >= 0 || result == kWarning, ErrorCode::data_source, "{} cannot be unpacked: {}", file.path(),
            lib.error(archive) ? lib.error(archive) : "unknown error");
    return result;
  };
  for (const auto support : lib.supported) support(archive);
  check(lib.open(archive, file.path().c_str(), kBlockBytes));
  nlohmann::json members = nlohmann::json::array();
  std::vector<std::byte> block(kBlockBytes);
  std::uint64_t end = size_bytes(scratch.file(), "the scratch file");
  const std::uint64_t max_end = end + kMaxRatio * file.size_bytes() + kBlockBytes;
  for (void* entry = nullptr; check(lib.next_header(archive, &entry)) != kEnd;) {
    // In the locale "C", names that are not ASCII exist only in UTF-8.
    const char* const name = lib.path(entry) ? lib.path(entry) : lib.path_utf8(entry);
    if (!name || lib.type(entry) != kRegularFile || !wanted(name)) continue;
    const bool in_scratch = lib.n_filters(archive) > 1;  // "none" counts as one
    const std::uint64_t begin = in_scratch ? end : static_cast<std::uint64_t>(lib.position(archive, 0));
    auto n = static_cast<std::uint64_t>(lib.size(entry));
    if (in_scratch) {
      for (std::int64_t n_read = 0; (n_read = check(lib.read(archive, block.data(), block.size()))) > 0;) {
        require(end + static_cast<std::uint64_t>(n_read) <= max_end, ErrorCode::data_source,
                "{} unpacks to more than {} times its {} bytes, which images and text do not do", file.path(),
                kMaxRatio, file.size_bytes());
        write_at(scratch.file(), "the unpacked " + file.path(),
                 std::span(block).first(static_cast<std::size_t>(n_read)), end);
        end += static_cast<std::uint64_t>(n_read);
      }
      n = end - begin;
    }
    require(in_scratch || (lib.n_holes(entry) == 0 && begin <= file.size_bytes() && n <= file.size_bytes() - begin),
            ErrorCode::data_source, "{} is truncated in {}, or this has holes (tar --sparse)", file.path(), name);
    members.push_back({name, in_scratch, begin, n});
  }
  return members;
}

}  // namespace

bool is_archive(const std::string& path) {
  constexpr std::array<const char*, 4> kEndings{".tar", ".tar.gz", ".tgz", ".tar.zst"};
  return std::ranges::any_of(kEndings, [&](const char* ending) { return path.ends_with(ending); });
}

std::string ArchiveMember::text() const {
  std::string text(place.size_bytes, '\0');
  InputFile(*path).read(place.offset, std::as_writable_bytes(std::span(text)), name);
  return text;
}

std::vector<ArchiveMember> read_archive(const std::string& path, const Scratch& scratch,
                                        const std::function<bool(const std::string& name)>& wanted) {
  const InputFile file(path);
  library();  // its absence is reported here, and not as a crash of the child
  const auto read = [&] {
    std::string bytes;
    nlohmann::json::to_cbor(unpack(file, scratch, wanted), bytes);
    return bytes;
  };
  const ChildVerdict verdict =
      run_in_limited_child(read, kChildSeconds + static_cast<unsigned>(file.size_bytes() / kBytesPerSecond));
  if (verdict.code) throw Error(*verdict.code, verdict.sentence);
  require(verdict.good, ErrorCode::data_source, "{} cannot be unpacked: {}", path, verdict.sentence);
  const auto in_archive = std::make_shared<const std::string>(path);
  const auto in_scratch = std::make_shared<const std::string>(scratch.path());
  std::vector<ArchiveMember> out;
  try {
    for (const auto& member : nlohmann::json::from_cbor(verdict.result))
      out.push_back({member.at(0), member.at(1) ? in_scratch : in_archive, {member.at(2), member.at(3)}});
  } catch (const nlohmann::json::exception&) {
    fail(ErrorCode::data_source, "{} cannot be unpacked: the library overwrote memory", path);
  }
  return out;
}

std::string libarchive_version() {
  try {
    const std::string text = library().version();  // "libarchive 3.6.2"
    return text.substr(text.find(' ') + 1);
  } catch (const Error&) {
    return "not found";
  }
}

}  // namespace lockstep::data

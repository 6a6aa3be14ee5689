#include "data/file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>
#include <utility>

#include "lockstep/error.h"

namespace lockstep::data {
namespace {

std::int64_t modified_ns(const struct stat& status) {
  return status.st_mtim.tv_sec * std::int64_t{1'000'000'000} + status.st_mtim.tv_nsec;
}

}  // namespace

InputFile::InputFile(const std::string& path)
    : path_(path), descriptor_(open_regular_file(path, ErrorCode::cannot_open)) {
  struct stat status {};
  const bool is_known = ::fstat(descriptor_.get(), &status) == 0;
  require(is_known, ErrorCode::system_call, "cannot inspect {}: {}", path, system_text(errno));
  size_bytes_ = static_cast<std::uint64_t>(status.st_size);
  modified_ns_ = modified_ns(status);
}

void InputFile::require_unchanged() const {
  struct stat status {};
  const bool is_known = ::fstat(descriptor_.get(), &status) == 0;
  require(is_known, ErrorCode::system_call, "cannot inspect {}: {}", path_, system_text(errno));
  const auto size_bytes = static_cast<std::uint64_t>(status.st_size);
  require(size_bytes == size_bytes_, ErrorCode::data_changed, "{} has changed from {} to {} bytes while it was in use",
          path_, size_bytes_, size_bytes);
  require(modified_ns(status) == modified_ns_, ErrorCode::data_changed, "{} was written to while it was in use", path_);
}

void InputFile::fail_read(ReadOutcome outcome, int error_number, std::uint64_t offset, std::size_t n_bytes,
                          const std::string& what) const {
  if (outcome == ReadOutcome::failed)
    fail(ErrorCode::system_call, "{}: reading {} ({} bytes at offset {}) failed: {}", path_, what, n_bytes, offset,
         system_text(error_number));
  struct stat status {};
  const auto now = ::fstat(descriptor_.get(), &status) == 0 ? static_cast<std::uint64_t>(status.st_size) : 0;
  if (now < size_bytes_)
    fail(ErrorCode::data_damaged,
         "{} shrank from {} to {} bytes while it was open: {} ({} bytes at offset {}) cannot be read", path_,
         size_bytes_, now, what, n_bytes, offset);
  fail(ErrorCode::data_damaged, "{} ends at byte {}, inside {} ({} bytes at offset {})", path_, now, what, n_bytes,
       offset);
}

void InputFile::read(std::uint64_t offset, std::span<std::byte> target, const std::string& what) const {
  const ReadOutcome outcome = try_read(offset, target);
  if (outcome != ReadOutcome::complete) fail_read(outcome, errno, offset, target.size(), what);
}

StoredBytes StoredBytes::in_a_row(std::uint64_t size_bytes, std::uint64_t chunk_bytes, std::uint64_t first,
                                  std::uint64_t second, std::uint64_t stride) {
  StoredBytes out{size_bytes, chunk_bytes, std::vector<std::uint64_t>(n_chunks(size_bytes, chunk_bytes))};
  for (std::size_t i = 0; i < out.offsets.size(); ++i) out.offsets[i] = i == 0 ? first : second + (i - 1) * stride;
  return out;
}

FolderListing list_readable_files(const std::string& folder,
                                  const std::function<bool(const std::filesystem::path&)>& accepts) {
  namespace fs = std::filesystem;
  FolderListing out;
  std::vector<fs::path> folders{folder};
  while (!folders.empty()) {
    const fs::path current = std::move(folders.back());
    folders.pop_back();
    std::error_code error;
    fs::directory_iterator entry(current, error);
    while (!error && entry != fs::directory_iterator()) {
      // An entry that cannot be inspected counts as a file: reading it will report why.
      std::error_code unknown;
      const fs::path path = entry->path();
      if (entry->is_directory(unknown)) {
        if (!entry->is_symlink(unknown)) folders.push_back(path);
      } else if (accepts(path)) {
        out.files.push_back(path.string());
      }
      entry.increment(error);
    }
    if (error) out.unread.push_back({.path = current.string(), .reason = error.message()});
  }
  std::ranges::sort(out.files);
  std::ranges::sort(out.unread, {}, &FolderListing::Unread::path);
  return out;
}

std::vector<std::string> list_files(const std::string& folder,
                                    const std::function<bool(const std::filesystem::path&)>& accepts) {
  FolderListing found = list_readable_files(folder, accepts);
  if (!found.unread.empty())
    fail(ErrorCode::data_source, "cannot list {}: {}", found.unread.front().path, found.unread.front().reason);
  return std::move(found.files);
}

const std::string& check_output(const std::string& path, bool replace) {
  require(!path.empty(), ErrorCode::usage, "the name of the file to write is empty: expected a name such as train.h5");
  struct stat status {};
  const bool exists = ::stat(path.c_str(), &status) == 0;
  require(!exists || S_ISREG(status.st_mode), ErrorCode::data_exists, "{} exists and is {}", path,
          S_ISDIR(status.st_mode) ? "a folder" : "not a regular file");
  require(!exists || replace, ErrorCode::data_exists, "{} already exists; use --force to replace it", path);
  const std::string parent = std::filesystem::path(path).parent_path().string(), folder = parent.empty() ? "." : parent;
  // In a statement of its own: the arguments of require() are evaluated in any order, and one of them reads errno.
  const bool is_there = ::stat(folder.c_str(), &status) == 0;
  require(is_there, ErrorCode::system_call, "cannot write {}: the folder {}: {}", path, folder, system_text(errno));
  require(S_ISDIR(status.st_mode), ErrorCode::system_call, "cannot write {}: {} is not a folder", path, folder);
  const bool is_writable = ::faccessat(AT_FDCWD, folder.c_str(), W_OK | X_OK, AT_EACCESS) == 0;
  require(is_writable, ErrorCode::system_call, "cannot write {}: the folder {}: {}", path, folder, system_text(errno));
  return path;
}

}  // namespace lockstep::data

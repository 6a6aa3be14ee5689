// Tar archives and compressed files, read with libarchive, which is loaded when it is first used. They are not trusted:
// the library reads them in a limited child process (data_file.h).
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "data/file.h"

namespace lockstep::data {

/// A file for unpacked bytes, without a name, in the folder of `output`.
class Scratch {
 public:
  explicit Scratch(const std::string& output) : file_(create_unnamed_file(output)) {}
  const Descriptor& file() const { return file_; }
  /// Under this path, InputFile opens it while this object exists.
  std::string path() const { return "/proc/self/fd/" + std::to_string(file_.get()); }

 private:
  Descriptor file_;
};

/// By its name: *.tar, *.tar.gz, *.tgz, *.tar.zst.
bool is_archive(const std::string& path);

struct ArchiveMember {
  std::string name;  // with its folders; "data" for a compressed file that is no archive
  std::shared_ptr<const std::string>
      path;         // of the file with its bytes: the archive, or if that is compressed, scratch
  ByteRange place;  // in that file

  std::string text() const;  // all of its bytes
};

/// The members whose names are `wanted`, in the order of the archive, which may be compressed with gzip, zstd or xz.
/// Throws data_source if it is damaged or unpacks to more than is plausible, and not_supported without libarchive.
std::vector<ArchiveMember> read_archive(const std::string& path, const Scratch& scratch,
                                        const std::function<bool(const std::string& name)>& wanted);

/// "3.6.2", or "not found".
std::string libarchive_version();

}  // namespace lockstep::data

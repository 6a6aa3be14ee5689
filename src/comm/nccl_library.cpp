#include "comm/nccl_library.h"

#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <vector>

#include "lockstep/error.h"

#define LOCKSTEP_TEXT_OF(words) #words
#define LOCKSTEP_TEXT(words) LOCKSTEP_TEXT_OF(words)

namespace lockstep::comm {
namespace {

constexpr const char* kName = "libnccl.so.2";
constexpr const char* kRemedy =
    "install NCCL 2.20 or newer and set NCCL_HOME to where it is, or set comm.backend=staged, which sums by way of the "
    "host's memory";

struct Search {
  std::vector<std::string> paths;
  std::string where;  // for messages
};

Search places() {
  const auto of = [](const std::string& home) {
    return std::vector<std::string>{home + "/lib/" + kName, home + "/lib64/" + kName, home + "/" + kName};
  };
  const char* home = std::getenv("NCCL_HOME");
  if (home != nullptr && *home != '\0') return {of(home), fmt::format("NCCL_HOME={}", home)};
  Search search{{}, "the system's libraries"};
#ifdef LOCKSTEP_NCCL_HOME
  search.paths = of(LOCKSTEP_TEXT(LOCKSTEP_NCCL_HOME));
#endif
  search.paths.emplace_back(kName);
  return search;
}

NcclLibrary load() {
  const Search search = places();
  NcclLibrary library;
  void* handle = nullptr;
  std::string reason;
  for (const std::string& path : search.paths) {
    handle = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);  // never closed: it has threads and memory of its own
    library.path = path;
    if (handle != nullptr) break;
    if (reason.empty()) reason = ::dlerror();
  }
  require(handle != nullptr, ErrorCode::not_supported,
          "ranks on GPUs sum by NCCL, and {} cannot be loaded from {} ({}): {}", kName, search.where, reason, kRemedy);
  std::string missing;
  const auto find = [&](auto& function, const char* name) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(::dlsym(handle, name));
    if (function == nullptr && missing.empty()) missing = name;
  };
#define LOCKSTEP_NCCL_FIND(function) find(library.function, #function);
  LOCKSTEP_NCCL_FUNCTIONS(LOCKSTEP_NCCL_FIND)
#undef LOCKSTEP_NCCL_FIND
  if (library.ncclGetVersion != nullptr) (void)library.ncclGetVersion(&library.version);
  require(library.version >= kOldestNccl, ErrorCode::not_supported,
          "{} is NCCL {}, and 2.20 is the oldest that will do: {}", library.path,
          library.version > 0 ? nccl_version_text(library.version) : "of no version", kRemedy);
  require(missing.empty(), ErrorCode::not_supported, "{} is NCCL {} but lacks {}: {}", library.path,
          nccl_version_text(library.version), missing, kRemedy);
  return library;
}

std::string text_of(ncclResult_t status, const NcclPlace& place) {
  return fmt::format("NCCL reported {} ({}) for {} at {}:{}; {}", static_cast<int>(status),
                     nccl().ncclGetErrorString(status), place.statement, place.file, place.line,
                     nccl().ncclGetLastError(nullptr));
}

}  // namespace

const NcclLibrary& nccl() {
  static const NcclLibrary library = load();  // again with the next call where it failed
  return library;
}

std::string nccl_version_text(int version) {
  const int unit = version < 10000 ? 1000 : 10000;  // 2.8 was 2800, 2.9 is 20900
  return fmt::format("{}.{}.{}", version / unit, version % unit / 100, version % 100);
}

void throw_nccl_failure(ncclResult_t status, const NcclPlace& place) {
  throw Error(ErrorCode::library, text_of(status, place));
}

void report_nccl_failure(ncclResult_t status, const NcclPlace& place) noexcept {
  try {
    std::fprintf(stderr, "%s\n", text_of(status, place).c_str());
  } catch (...) {
    std::fputs("NCCL reported an error, and there is no memory to say which\n", stderr);
  }
}

}  // namespace lockstep::comm

#include "comm/nccl_library.h"

#include <dlfcn.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "lockstep/error.h"

#define LOCKSTEP_STRINGIFY(tokens) #tokens
#define LOCKSTEP_STRING(tokens) LOCKSTEP_STRINGIFY(tokens)

namespace lockstep::comm {
namespace {

constexpr int kOldestWithWindows = 22700;
constexpr const char* kName = "libnccl.so.2";
constexpr const char* kRemedy =
    "install NCCL 2.20 or newer and set NCCL_HOME to its folder, or set comm.backend=staged, which sums in host memory";

struct Search {
  std::vector<std::string> paths;
  std::string where;  // for messages
};

Search search_paths() {
  const auto in_folder = [](const std::string& home) {
    return std::vector<std::string>{home + "/lib/" + kName, home + "/lib64/" + kName, home + "/" + kName};
  };
  const char* home = std::getenv("NCCL_HOME");
  if (home != nullptr && *home != '\0') return {in_folder(home), fmt::format("NCCL_HOME={}", home)};
  Search search{{}, "the system's library path"};
#ifdef LOCKSTEP_NCCL_HOME
  search.paths = in_folder(LOCKSTEP_STRING(LOCKSTEP_NCCL_HOME));
#endif
  search.paths.emplace_back(kName);
  return search;
}

NcclLibrary load() {
  const Search search = search_paths();
  NcclLibrary library;
  void* handle = nullptr;
  std::string reason;
  for (const std::string& path : search.paths) {
    handle = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);  // never closed, because it has its own threads and memory
    library.path = path;
    if (handle != nullptr) break;
    if (reason.empty()) reason = ::dlerror();
  }
  require(handle != nullptr, ErrorCode::not_supported,
          "ranks on GPUs need NCCL, but {} cannot be loaded from {} ({}): {}", kName, search.where, reason, kRemedy);
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
          "{} is NCCL {}, but Lockstep needs 2.20 or newer: {}", library.path,
          library.version > 0 ? nccl_version_text(library.version) : "of unknown version", kRemedy);
  require(missing.empty(), ErrorCode::not_supported, "{} is NCCL {}, but it has no function {}: {}", library.path,
          nccl_version_text(library.version), missing, kRemedy);
  if (library.version >= kOldestWithWindows) {
    find(library.ncclCommWindowRegister, "ncclCommWindowRegister");
    find(library.ncclCommWindowDeregister, "ncclCommWindowDeregister");
  }
  return library;
}

std::string text_of(ncclResult_t status, const NcclCall& call) {
  return fmt::format("NCCL reported {} ({}) for {} at {}:{}; {}", static_cast<int>(status),
                     nccl().ncclGetErrorString(status), call.statement, call.file, call.line,
                     nccl().ncclGetLastError(nullptr));
}

}  // namespace

const NcclLibrary& nccl() {
  static const NcclLibrary library = load();  // retried by the next call if it throws
  return library;
}

std::string nccl_version_text(int version) {
  const int unit = version < 10000 ? 1000 : 10000;  // 2800 is 2.8, 20900 is 2.9
  return fmt::format("{}.{}.{}", version / unit, version % unit / 100, version % 100);
}

void throw_nccl_failure(ncclResult_t status, const NcclCall& call) {
  throw Error(ErrorCode::library, text_of(status, call));
}

void report_nccl_failure(ncclResult_t status, const NcclCall& call) noexcept {
  try {
    std::fprintf(stderr, "%s\n", text_of(status, call).c_str());
  } catch (...) {
    std::fputs("NCCL reported an error, but there is not enough memory to print it\n", stderr);
  }
}

namespace {

constexpr std::size_t kAlignment = 4096;  // required by Communicator::allocate() and by windows

class NcclMemory final : public Memory {
 public:
  NcclMemory(void* data, std::size_t size_bytes) : data_(data), size_bytes_(size_bytes) {}
  ~NcclMemory() override { LOCKSTEP_NCCL_REPORT(nccl().ncclMemFree(data_)); }
  NcclMemory(const NcclMemory&) = delete;
  NcclMemory& operator=(const NcclMemory&) = delete;

  void* data() const override { return data_; }
  std::size_t size_bytes() const override { return size_bytes_; }

 private:
  void* data_;
  std::size_t size_bytes_;
};

}  // namespace

std::unique_ptr<Memory> allocate_nccl_memory(Backend& backend, Stream& stream, std::size_t size_bytes) {
  void* data = nullptr;
  if (!nccl().has_windows() || size_bytes == 0) return nullptr;
  if (nccl().ncclMemAlloc(&data, size_bytes) != ncclSuccess || data == nullptr) return nullptr;
  auto memory = std::make_unique<NcclMemory>(data, size_bytes);
  if (reinterpret_cast<std::uintptr_t>(data) % kAlignment != 0) return nullptr;
  backend.fill_zero(data, size_bytes, stream);
  stream.synchronize();
  return memory;
}

}  // namespace lockstep::comm

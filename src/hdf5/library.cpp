#include "hdf5/library.h"

#include "lockstep/log.h"
#include "lockstep/memory_limit.h"

namespace lockstep::hdf5 {
namespace {

/// Called for each entry of the error stack, from the innermost outwards. Keeps the first.
herr_t keep_first(unsigned, const H5E_error2_t* error, void* out) {
  auto& text = *static_cast<std::string*>(out);
  if (text.empty() && error->desc != nullptr) text = error->desc;
  return 0;
}

}  // namespace

void IdTraits::close(Type id) {
  if (H5Idec_ref(id) < 0) log::warning("HDF5 could not close one of its objects");
}

void start() {
  // The order matters: the first call that initialises HDF5 registers its exit handler.
  static const herr_t without_handler = H5dont_atexit();
  static_cast<void>(without_handler);
  H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr);
  // HDF5 crashes if an allocation fails. Of checkpoints, it keeps less than this in memory; data sets are opened in a
  // child process.
  require_mappable(std::size_t{32} << 20, "HDF5");
}

Reason reason() {
  std::string text;
  H5Ewalk2(H5E_DEFAULT, H5E_WALK_UPWARD, keep_first, &text);
  H5Eclear2(H5E_DEFAULT);
  if (text.empty()) return {"HDF5 gave no reason"};
  // "file write failed: time = ..., errno = 28, error message = 'No space left on device', buf = 0x7f..., ..."
  constexpr std::string_view kOfSystem = "error message = '";
  const std::size_t found = text.find(kOfSystem);
  if (found == std::string::npos) return {text};
  const std::size_t begin = found + kOfSystem.size();
  return {text.substr(begin, text.find('\'', begin) - begin), true};
}

Id check_id(hid_t id, ErrorCodes codes, const std::string& path, const std::string& doing) {
  check(id < 0 ? -1 : 0, codes, path, doing);
  return Id(id);
}

void check(herr_t status, ErrorCodes codes, const std::string& path, const std::string& doing) {
  if (status >= 0) return;
  const Reason why = reason();
  fail(why.is_of_system ? codes.of_system : codes.of_library, "{}: {} failed: {}", path, doing, why.text);
}

Id access_properties(const std::string& path) {
  constexpr ErrorCodes kLibrary{ErrorCode::library, ErrorCode::library};
  Id list = check_id(H5Pcreate(H5P_FILE_ACCESS), kLibrary, path, "preparing to open it");
#if H5_VERSION_GE(1, 10, 7)
  check(H5Pset_file_locking(list.get(), false, true), kLibrary, path, "opening it without locks");
#endif
  return list;
}

}  // namespace lockstep::hdf5

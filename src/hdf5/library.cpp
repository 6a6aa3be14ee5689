#include "hdf5/library.h"

#include "lockstep/log.h"

namespace lockstep::hdf5 {
namespace {

/// Called from the innermost entry of the stack outwards.
herr_t keep_first(unsigned, const H5E_error2_t* error, void* out) {
  auto& text = *static_cast<std::string*>(out);
  if (text.empty() && error->desc != nullptr) text = error->desc;
  return 0;
}

}  // namespace

void IdTraits::close(Type id) {
  if (H5Idec_ref(id) < 0) log::warning("HDF5 could not close one of its objects");
}

void silence() { H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr); }

std::string reason() {
  std::string text;
  H5Ewalk2(H5E_DEFAULT, H5E_WALK_UPWARD, keep_first, &text);
  H5Eclear2(H5E_DEFAULT);
  return text.empty() ? "HDF5 gave no reason" : text;
}

Id check_id(hid_t id, ErrorCode code, const std::string& path, const std::string& doing) {
  if (id < 0) fail(code, "{}: {} failed: {}", path, doing, reason());
  return Id(id);
}

void check(herr_t status, ErrorCode code, const std::string& path, const std::string& doing) {
  if (status < 0) fail(code, "{}: {} failed: {}", path, doing, reason());
}

Id access_properties(const std::string& path) {
  Id list = check_id(H5Pcreate(H5P_FILE_ACCESS), ErrorCode::library, path, "preparing to open it");
#if H5_VERSION_GE(1, 10, 7)
  check(H5Pset_file_locking(list.get(), false, true), ErrorCode::library, path, "opening it without locks");
#endif
  return list;
}

}  // namespace lockstep::hdf5

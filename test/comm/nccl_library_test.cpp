// NCCL as it is found, or not: each of these ends in a sentence that says what to do.
#include "comm/nccl_library.h"

#include <gtest/gtest.h>

#include "comm/nccl_communicator.h"
#include "lockstep/error.h"
#include "test/comm/fake_nccl.h"

namespace lockstep::comm {
namespace {

std::string reason_for_none() {
  try {
    (void)nccl();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::not_supported);
    EXPECT_NE(std::string(error.what()).find("set comm.backend=staged"), std::string::npos) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "NCCL was loaded";
  return "";
}

bool holds(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

// A library that was loaded stays, so failures come first; each of them is found anew.
TEST(NcclLibrary, IsAskedForUntilThereIsOne) {
  ::setenv("NCCL_HOME", "/nowhere", 1);
  std::string reason = reason_for_none();
  EXPECT_TRUE(holds(reason, "libnccl.so.2 cannot be loaded from NCCL_HOME=/nowhere")) << reason;
  EXPECT_TRUE(holds(reason, "/nowhere/lib/libnccl.so.2: cannot open shared object file")) << reason;
  EXPECT_EQ(nccl_library_text(), reason);

  {
    const NcclHome another(folder_of_tests() / "faults" / "fault_injection.so");
    reason = reason_for_none();
    EXPECT_TRUE(holds(reason, "libnccl.so.2 is NCCL of unknown version, but Lockstep needs 2.20 or newer")) << reason;
  }
  const NcclHome fake;
  ::setenv("FAKE_NCCL_VERSION", "21903", 1);
  reason = reason_for_none();
  EXPECT_TRUE(holds(reason, "libnccl.so.2 is NCCL 2.19.3, but Lockstep needs 2.20 or newer")) << reason;

  ::setenv("FAKE_NCCL_VERSION", "22105", 1);
  EXPECT_EQ(nccl().version, 22105);
  EXPECT_EQ(nccl_library_text(), "NCCL 2.21.5 (" + (fake.path() / "lib/libnccl.so.2").string() + ")");
}

TEST(NcclLibrary, VersionsAreReadOfBothKindsOfNumber) {
  EXPECT_EQ(nccl_version_text(22809), "2.28.9");
  EXPECT_EQ(nccl_version_text(23000), "2.30.0");
  EXPECT_EQ(nccl_version_text(2708), "2.7.8");
}

}  // namespace
}  // namespace lockstep::comm
